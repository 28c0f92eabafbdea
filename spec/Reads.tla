------------------------------- MODULE Reads --------------------------------
(* Reads: planned on the slot table, fetched without a lock, checked by versions. Lock: state.             *)
EXTENDS WriteTasks

\* A read of hit h as the slot table is given: versions, status, writers, tasks, and what was claimed there.
PlanOf(h, slots, try, step, ver, st, wr, tk, id) ==
    LET at(i) == <<slots[i], h[3]>>
        all == 1..Len(slots)
        moving(i) == st[at(i)] = "IN_TRANSIT"
        source(i) == IF st[at(i)] = "ABSENT" THEN "absent"
                     ELSE IF moving(i) /\ tk[wr[at(i)]].late THEN "staged" ELSE "pool"
    IN  [slots |-> slots, try |-> try, step |-> step, epoch |-> epoch, st |-> "pending",
         ver |-> [i \in all |-> ver[at(i)]],
         src |-> [i \in all |-> source(i)],
         staged |-> [i \in all |-> IF source(i) = "staged" THEN tk[wr[at(i)]].bytes[at(i)] ELSE Nothing],
         joins |-> {wr[at(i)] : i \in {j \in all : moving(j) /\ source(j) = "pool"}},
         kept |-> [i \in all |-> Nothing],
         want |-> [i \in all |-> id[at(i)]],
         got |-> <<>>]

Place(h, i) == <<reads[h].slots[i], h[3]>>
RowsOfRead(h) == 1..Len(reads[h].slots)
Moved(h, i) == version[Place(h, i)] # reads[h].ver[i]

\* The read with its rows on claimed slots copied aside, where they are still those that it asked for.
Preserve(h, claimed) ==
    [reads[h] EXCEPT !.kept = [i \in RowsOfRead(h) |->
        IF /\ h \in Pending /\ reads[h].src[i] = "pool" /\ reads[h].slots[i] \in claimed
           /\ ~Moved(h, i) /\ @[i] = Nothing
        THEN pool[Place(h, i)] ELSE @[i]]]

Over(H) == [h \in DOMAIN reads |-> IF h \in H \cap Pending THEN [reads[h] EXCEPT !.st = "over"] ELSE reads[h]]

\* Why a read raises: by its plan, because a task that it waits for was lost, or when its rows were gathered.
AbsentHidden(h) == h[3] \in Hidden /\ "absent" \in Range(reads[h].src)
Raises(h) == \E i \in RowsOfRead(h) : reads[h].src[i] = "pool" /\ Moved(h, i) /\ reads[h].kept[i] = Nothing

\* The read that a reader fetches is over: dropped, or planned again.
Gone(t) == LET h == rdr[t].hit IN h \notin DOMAIN reads \/ reads[h].try # rdr[t].try \/ reads[h].st # "fetching"
Gathers(t) == rdr[t].pc = "gather" \/ (rdr[t].pc = "join" /\ Registered(rdr[t].joins) = {} /\ ~failed)
Missing(t) == {i \in 1..Len(rdr[t].buf) : reads[rdr[t].hit].src[i] = "pool" /\ rdr[t].buf[i] = Nothing}
IdleReader == [pc |-> "idle", hit |-> <<0, "", "">>, try |-> 0, joins |-> {}, wait |-> {}, buf |-> <<>>]

BeginFetch(t) ==
    /\ Free("state") /\ rdr[t].pc = "idle"
    /\ \E h \in DOMAIN reads :
        /\ reads[h].st = "pending"
        /\ t = "builder" => bld.pc = "merging" /\ reads[h].step = bld.step
        /\ reads' = [reads EXCEPT ![h].st = "fetching"]
        /\ rdr' = [rdr EXCEPT ![t] =
                [pc |-> IF AbsentHidden(h) THEN "error" ELSE IF reads[h].joins = {} THEN "gather" ELSE "join",
                 hit |-> h, try |-> reads[h].try, joins |-> reads[h].joins, wait |-> {}, buf |-> reads[h].kept]]
    /\ UNCHANGED <<slotVars, reqVars, stepVars, flagVars, taskVars, holders, memVars, lock, eng, bld, com, schedVars>>

\* The next row is read off the pool, whatever lies there now. (Data: no lock.)
RowGathered(t) ==
    /\ Gathers(t) /\ ~Gone(t)
    /\ \E i \in First(Missing(t)) :
        rdr' = [rdr EXCEPT ![t].pc = "gather", ![t].buf[i] = pool[Place(rdr[t].hit, i)]]
    /\ UNCHANGED <<stateVars, taskVars, holders, memVars, lock, eng, bld, com, schedVars>>

\* Rows whose version is still the planned one are delivered as they were gathered, the others as preserved.
Delivered(t, h, i) ==
    CASE reads[h].src[i] = "absent" -> Absent
      [] reads[h].src[i] = "staged" -> reads[h].staged[i]
      [] OTHER -> IF Moved(h, i) THEN reads[h].kept[i] ELSE rdr[t].buf[i]

EndFetch(t) ==
    /\ Free("state") /\ Gathers(t) /\ ~Gone(t) /\ Missing(t) = {}
    /\ LET h == rdr[t].hit
       IN  /\ ~Raises(h)
           /\ reads' = [reads EXCEPT ![h].st = "done", ![h].got = [i \in RowsOfRead(h) |-> Delivered(t, h, i)]]
    /\ rdr' = [rdr EXCEPT ![t] = IdleReader]
    /\ UNCHANGED <<slotVars, reqVars, stepVars, flagVars, taskVars, holders, memVars, lock, eng, bld, com, schedVars>>

\* A reader lets go of a read that raises; it finds nothing to let go of when the read was over already.
ReaderDrops(t) ==
    /\ rdr[t].pc # "idle"
    /\ \/ Gone(t) /\ rdr[t].pc # "joining"
       \/ rdr[t].pc = "error"
       \/ Gathers(t) /\ Missing(t) = {} /\ Raises(rdr[t].hit)
       \/ rdr[t].pc = "gather" /\ CanDrop
    /\ reads' = IF Gone(t) THEN reads ELSE Over({rdr[t].hit})
    /\ rdr' = [rdr EXCEPT ![t] = IdleReader]

\* The builder lets go of its step's reads: it raises, one of them raised, or nobody asked for them.
BuilderDrops ==
    /\ bld.pc \in {"merging", "raising"}
    /\ LET mine == {h \in DOMAIN reads : reads[h].step = bld.step}
       IN  /\ mine \cap Pending # {}
           /\ CanDrop \/ bld.pc = "raising" \/ \E h \in mine : reads[h].st = "over"
           /\ reads' = Over(mine)
    /\ UNCHANGED rdr

DropRead(t) ==
    /\ Free("state")
    /\ (\E r \in Readers \cap {t} : ReaderDrops(r)) \/ (t = "builder" /\ BuilderDrops)
    /\ UNCHANGED <<slotVars, reqVars, stepVars, flagVars, taskVars, holders, memVars, lock, eng, bld, com, schedVars>>
=============================================================================
