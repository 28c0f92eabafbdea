--------------------------- MODULE SlotOwnership ----------------------------
(* Steps on their way through the cache, and who owns the slots. Lock: state.                              *)
EXTENDS Reads

BuilderFree == bld.pc = "idle" \/ /\ bld.pc \in {"merging", "raising"}
                                  /\ ~\E h \in Pending : reads[h].step = bld.step
                                  /\ "builder" \in Readers => rdr["builder"].pc = "idle"
ToEnd == /\ com["closer"].pc = "closing" /\ (At("committer", "idle") \/ Overtook) /\ Unfinished = {}
         /\ "prefetch" \in Readers => rdr["prefetch"].pc = "idle"
Release == lock' = [lock EXCEPT !["state"] = Nobody]

\* A task's record is published next.
RecordDue == \E w \in Writers :
    /\ ~HoldsAny(com[w].tids)
    /\ At(w, "failed") \/ (At(w, "writing") /\ com[w].todo = {})

-----------------------------------------------------------------------------
(* Drain: the first part of the critical section of most actions below.                                    *)

\* Where a thread drains; "flushed" and "forward" leave the state lock at once, the others go on under it.
EngineDrains == /\ eng.up = {}
                /\ \/ eng.pc = "flushed" \/ (eng.pc = "flush" /\ Registered(eng.wait) = {})
                   \/ eng.pc = "forward" /\ failures # <<>>
                   \/ eng.pc = "frozen" /\ ~closed
                   \/ eng.pc = "idle" /\ (agenda # <<>> \/ CanReset) /\ ~closed
                   \/ eng.pc = "begun" /\ agenda # <<>> /\ CanSkip /\ ~closed

\* Records are taken, and what was written becomes visible where its task still owns the cell.
TakeRecords ==
    /\ LET landed == {c \in Cells : writer[c] \in Range(completed)}
       IN  /\ status' = [c \in Cells |-> IF c \in landed /\ status[c] = "IN_TRANSIT" THEN "COMMITTED" ELSE status[c]]
           /\ writer' = [c \in Cells |-> IF c \in landed THEN NoTask ELSE writer[c]]
    /\ failed' = (failed \/ failures # <<>>)
    /\ tasks' = Without(tasks, Range(completed) \cup Range(failures))
    /\ completed' = <<>> /\ failures' = <<>>
    /\ UNCHANGED <<tenant, version, ident, reqVars, stepVars, reads, closed, epoch, queueVars, woken, budgetVars,
                   holders, memVars, bld, rdr, com, schedVars>>

\* With a failure among the records the caller raises instead of going on. A drain that finds nothing is a step of
\* its own only where a record may still come before the action that it belongs to; anywhere else the order of the
\* two does not matter, and MayEnter takes them as one.
Drain(t) ==
    /\ Free("state") /\ Free("task")
    /\ Records \/ (RecordDue /\ ~(t = "engine" /\ eng.pc \in {"flush", "flushed", "forward"}))
    /\ \/ t = "engine" /\ EngineDrains
       \/ t = "builder" /\ BuilderFree /\ DOMAIN steps # {} /\ ~closed
       \/ t = "closer" /\ ToEnd
    /\ TakeRecords
    /\ LET leaves == (t # "closer" /\ failed') \/ (t = "engine" /\ eng.pc \in {"flush", "flushed", "forward"})
       IN  lock' = [lock EXCEPT !["state"] = IF leaves THEN Nobody ELSE t]
    /\ eng' = IF t # "engine" \/ eng.pc = "frozen" THEN eng
              ELSE IF failed' THEN [eng EXCEPT !.pc = "stopped"]
              ELSE IF eng.pc \in {"flush", "flushed"} THEN [eng EXCEPT !.pc = "joined"] ELSE eng

-----------------------------------------------------------------------------
(* The engine.                                                                                             *)

\* Slots that new requests were given hold nothing any more: nobody may plan on what lies there, and deferred
\* tasks no longer write it. Immediate tasks do: reads planned before may need those rows.
Retired(c, S) == c[1] \in S
LateWriter(c) == writer[c] \in DOMAIN tasks /\ tasks[writer[c]].late

\* Drain; end generations; register the hits and plan their reads on what is there now. An earlier step that was
\* begun and never published is dropped.
BeginStep ==
    /\ MayEnter("engine") /\ Free("task") /\ ~closed /\ ~failed
    /\ eng.up = {} /\ (eng.pc = "idle" \/ (eng.pc = "begun" /\ CanSkip))
    /\ \E plan \in Heads(agenda) :
       LET sealed == {openTask[r] : r \in plan.ended} \ {NoTask}
           n == begins + 1
           robbed(t) == {c \in Cells : Retired(c, plan.given) /\ LateWriter(c) /\ writer[c] = t}
           new == {<<n, r, k>> : r \in Hits(plan), k \in known}
       IN  /\ liveGen' = [r \in Requests |-> IF r \in plan.ended THEN NoTenant ELSE liveGen[r]]
           /\ openTask' = [r \in Requests |-> IF r \in plan.ended THEN NoTask ELSE openTask[r]]
           /\ tenant' = [s \in Slots |-> IF s \in plan.given THEN NoTenant ELSE tenant[s]]
           /\ status' = [c \in Cells |-> IF Retired(c, plan.given) THEN "ABSENT" ELSE status[c]]
           /\ ident' = [c \in Cells |-> IF Retired(c, plan.given) THEN Absent ELSE ident[c]]
           /\ writer' = [c \in Cells |-> IF Retired(c, plan.given) /\ LateWriter(c) THEN NoTask ELSE writer[c]]
           /\ tasks' = [t \in DOMAIN tasks |-> [tasks[t] EXCEPT !.lost = @ \cup robbed(t)]]
           /\ reads' = [h \in new |-> PlanOf(h, plan.hits[h[2]], 1, 0, version, status', writer', tasks', ident')]
                       @@ Over({h \in DOMAIN reads : h[1] = begun.n})
           /\ begun' = [n |-> n, plan |-> plan]
           /\ eng' = [eng EXCEPT !.pc = IF plan.order = <<>> THEN "idle" ELSE "begun", !.up = sealed]
           /\ agenda' = Tail(agenda) /\ begins' = n
    /\ Release
    /\ UNCHANGED <<version, gens, tids, known, steps, saved, consumed, given, flagVars, queueVars, recordVars,
                   budgetVars,
                   holders, memVars, bld, rdr, com, stepIds>>

\* Over the budget: the open deferred tasks that hold the oldest clone take no more rows; where none is open, all
\* that is unfinished is waited for. Where nothing is, bytes have come free since, and the engine tries again.
SealOldest ==
    /\ Free("state") /\ Free("task") /\ eng.pc = "over budget"
    /\ LET open == Range(openTask) \ {NoTask}
           oldest == {t \in open : \A o \in open : tasks[t].step <= tasks[o].step}
           flushed == IF open = {} THEN Unfinished ELSE oldest
       IN  /\ openTask' = [r \in Requests |-> IF openTask[r] \in oldest THEN NoTask ELSE openTask[r]]
           /\ eng' = [eng EXCEPT !.pc = IF flushed = {} THEN "joined" ELSE "flush", !.up = flushed, !.wait = flushed]
    /\ UNCHANGED <<slotVars, liveGen, gens, tids, known, stepVars, reads, flagVars, taskVars, holders, memVars,
                   lock, bld, rdr, com, schedVars>>

\* Hits on slots that their own step writes: they mean the step's rows, and are planned again.
Overtaken(plan) == {r \in Hits(plan) : Range(plan.hits[r]) \cap PlanSlots(plan) # {}}

\* An open deferred task takes more rows while it is in no queue and lost none of those that it would write.
CanTake(plan, r) ==
    /\ openTask[r] # NoTask
    /\ tasks[openTask[r]].state = "PENDING"
    /\ tasks[openTask[r]].lost \cap (SlotsOf(plan, r) \X (plan.keys \cap Deferred)) = {}

NewTask(plan, r, K, late, state, bytes) ==
    [state |-> state, late |-> late, req |-> r, step |-> eng.step, page |-> IF late THEN NoPage ELSE eng.page,
     rows |-> SlotsOf(plan, r) \X K, lost |-> {}, bytes |-> bytes, clones |-> IF late THEN {eng.step} ELSE {}]

\* What a step claims: its cells, whose they are, which task writes them, what; and who loses what by it. (A record
\* that Publish computes once. TLCEval says that a value is to be kept, it has no other meaning.)
Claim(plan) ==
    LET batch == Range(plan.order)
        claimed == PlanSlots(plan)
        nowKeys == plan.keys \cap Immediate
        lateKeys == plan.keys \cap Deferred
        \* the tasks, numbered: immediate ones in the batch's order, then deferred ones that are opened
        nows == IF nowKeys = {} THEN 0 ELSE Len(plan.order)
        opens == TLCEval({i \in DOMAIN plan.order : lateKeys # {} /\ ~CanTake(plan, plan.order[i])})
        before(r) == {i \in opens : i <= PlaceOf(plan, r)}
        nowTask == TLCEval([r \in batch |-> tids + PlaceOf(plan, r)])
        lateTask == TLCEval([r \in batch |-> IF PlaceOf(plan, r) \notin opens THEN openTask[r]
                                             ELSE tids + nows + Cardinality(before(r))])
        generation == TLCEval([r \in batch |-> Generation(plan, r)])
        share == TLCEval([s \in claimed |-> RequestAt(plan, s)])
        owner == TLCEval([s \in claimed |-> generation[share[s]]])
        cells == claimed \X plan.keys
        taker == TLCEval([c \in cells |-> IF c[2] \in Immediate THEN nowTask[share[c[1]]] ELSE lateTask[share[c[1]]]])
        \* cells that only lose an earlier tenant's row, by the key or, as a block changes hands whole, by the slot
        bereft == {s \in claimed : tenant[s] # owner[s]} \X (known \ plan.keys)
        mates == TLCEval({s \in Whole(claimed) \ claimed :
                            tenant[s] \notin {NoTenant} \cup {owner[x] : x \in BlockOf(s) \cap claimed}})
        unwritten == {c \in mates \X Keys : LateWriter(c)}
    IN  [slots |-> claimed, cells |-> TLCEval(cells), owner |-> owner, generation |-> generation, taker |-> taker,
         name |-> TLCEval([c \in cells |-> Identity(plan, c)]),
         bereft |-> TLCEval(bereft), mates |-> mates, unwritten |-> TLCEval(unwritten),
         taken |-> TLCEval(bereft \cup unwritten \cup {c \in cells : writer[c] # taker[c]}),
         nowKeys |-> nowKeys, lateKeys |-> lateKeys, nowTask |-> nowTask, lateTask |-> lateTask,
         nowNew |-> IF nowKeys = {} THEN {} ELSE Range(nowTask),
         takers |-> IF lateKeys = {} THEN {} ELSE Range(lateTask),
         tids |-> nows + Cardinality(opens),
         closed |-> {openTask[plan.order[i]] : i \in opens} \ {NoTask}]

\* Make the step part of the cache, all at once: preserve, claim its slots, register its tasks, bind them to the
\* page, plan again the hits on its own rows and on keys seen first, store it for the builder.
Publish ==
    /\ eng.pc = "frozen" /\ MayEnter("engine") /\ Free("task") /\ Free("page") /\ ~closed /\ ~failed
    /\ CanLag \/ Landed(eng.page)
    /\ \E plan \in {begun.plan} : \E new \in {Claim(plan)} :
       LET batch == Range(plan.order)
           lost(t) == {c \in new.taken : writer[c] = t}
           nowOf(t) == CHOOSE r \in batch : new.nowTask[r] = t
           lateOf(t) == CHOOSE r \in batch : new.lateTask[r] = t
           \* a task that goes on has this step's rows in place of those that it had there
           grown(t) == [tasks[t] EXCEPT !.rows = @ \cup (SlotsOf(plan, lateOf(t)) \X new.lateKeys),
                            !.bytes = [c \in Cells |-> IF c[1] \in SlotsOf(plan, lateOf(t)) /\ eng.clone[c] # Garbage
                                                      THEN eng.clone[c] ELSE @[c]],
                            !.clones = @ \cup {eng.step}]
           hits == {<<begun.n, r, k>> : r \in Hits(plan), k \in known \cup plan.keys}
           again(h) == h \notin DOMAIN reads \/ h[2] \in Overtaken(plan)
           tryOf(h) == IF h \in DOMAIN reads THEN reads[h].try + 1 ELSE 1
           asked(h, want) == [i \in 1..Len(want) |-> IF plan.hits[h[2]][i] \in new.slots
                                                     THEN ident'[<<plan.hits[h[2]][i], h[3]>>] ELSE want[i]]
       IN  /\ tenant' = [s \in Slots |-> IF s \in new.slots THEN new.owner[s]
                                         ELSE IF s \in new.mates THEN NoTenant ELSE tenant[s]]
           /\ version' = [c \in Cells |-> IF c \in new.cells \cup new.bereft THEN version[c] + 1 ELSE version[c]]
           /\ status' = [c \in Cells |-> IF c \in new.cells THEN "IN_TRANSIT"
                                         ELSE IF c \in new.bereft \/ Retired(c, new.mates) THEN "ABSENT" ELSE status[c]]
           /\ writer' = [c \in Cells |-> IF c \in new.cells THEN new.taker[c]
                                         ELSE IF c \in new.bereft \cup new.unwritten THEN NoTask ELSE writer[c]]
           /\ ident' = [c \in Cells |-> IF c \in new.cells THEN new.name[c]
                                        ELSE IF c \in new.bereft \/ Retired(c, new.mates) THEN Absent ELSE ident[c]]
           /\ liveGen' = [r \in Requests |-> IF r \in batch THEN new.generation[r] ELSE liveGen[r]]
           /\ gens' = gens + Cardinality(NewOnes(plan, Len(plan.order)))
           /\ known' = known \cup plan.keys
           /\ tids' = tids + new.tids
           /\ openTask' = [r \in Requests |-> IF r \in batch /\ new.lateKeys # {} THEN new.lateTask[r] ELSE openTask[r]]
           /\ tasks' = [t \in DOMAIN tasks \cup new.nowNew \cup new.takers |->
                CASE t \in new.nowNew -> NewTask(plan, nowOf(t), new.nowKeys, FALSE, "QUEUED", Blank)
                  [] t \in new.takers \ DOMAIN tasks -> NewTask(plan, lateOf(t), new.lateKeys, TRUE, "PENDING",
                        [c \in Cells |-> IF c[1] \in SlotsOf(plan, lateOf(t)) THEN eng.clone[c] ELSE Garbage])
                  [] OTHER -> [(IF t \in new.takers THEN grown(t) ELSE tasks[t]) EXCEPT !.lost = @ \cup lost(t)]]
           /\ tickets' = IF new.takers = {} THEN tickets
                         ELSE tickets \cup {[step |-> eng.step, size |-> eng.reserved, holders |-> new.takers]}
           /\ holders' = [holders EXCEPT ![eng.page] = @ \cup TaskHolds(new.nowNew)]
           /\ reads' = [h \in DOMAIN reads \cup hits |->
                LET read == IF h \in hits /\ again(h)
                            THEN PlanOf(h, plan.hits[h[2]], tryOf(h), eng.step,
                                        version', status', writer', tasks', ident')
                            ELSE Preserve(h, new.slots)
                IN  IF h \in hits THEN [read EXCEPT !.step = eng.step, !.want = asked(h, @)] ELSE read]
           /\ steps' = (eng.step :> eng.page) @@ steps
           /\ saved' = saved \cup {eng.step}
           /\ given' = (eng.step :> [c \in Cells |-> IF c \in new.cells THEN new.name[c] ELSE Garbage]) @@ given
           /\ begun' = NoStep
           /\ eng' = [eng EXCEPT !.pc = IF new.nowNew = {} THEN "idle" ELSE "published", !.last = new.nowNew,
                        !.up = new.closed, !.page = NoPage, !.reserved = 0, !.clone = Blank]
    /\ Release
    /\ UNCHANGED <<consumed, flagVars, queueVars, recordVars, charged, memVars, bld, rdr, com, schedVars>>

-----------------------------------------------------------------------------
(* The builder.                                                                                            *)

Consume(k, pc) ==
    /\ steps' = Without(steps, {k}) /\ consumed' = consumed \cup {k}
    /\ bld' = [pc |-> pc, step |-> k, page |-> steps[k]]
    /\ UNCHANGED <<slotVars, reqVars, begun, saved, given, flagVars, taskVars, holders, memVars, eng, rdr, com,
                   schedVars>>

TakeStep ==
    /\ BuilderFree /\ MayEnter("builder") /\ ~closed /\ ~failed
    /\ \E k \in DOMAIN steps : Consume(k, "copying")
    /\ Release /\ UNCHANGED reads

\* Also after a failure: the step's page and reads must come free.
DiscardStep ==
    /\ BuilderFree /\ Free("state") /\ ~closed
    /\ CanDrop \/ failed
    /\ \E k \in DOMAIN steps :
        /\ Consume(k, "leaving")
        /\ reads' = Over({h \in DOMAIN reads : reads[h].step = k})
    /\ UNCHANGED lock

-----------------------------------------------------------------------------
(* Epochs and the end.                                                                                     *)

\* Nothing saved so far can be planned on; what is on its way is never written; live requests begin anew.
Reset ==
    /\ CanReset /\ eng.pc = "idle" /\ eng.up = {} /\ MayEnter("engine") /\ Free("task") /\ ~closed /\ ~failed
    /\ tenant' = [s \in Slots |-> NoTenant]
    /\ version' = [c \in Cells |-> IF c[2] \in known THEN version[c] + 1 ELSE version[c]]
    /\ status' = [c \in Cells |-> "ABSENT"] /\ writer' = [c \in Cells |-> NoTask]
    /\ ident' = [c \in Cells |-> Absent]
    /\ tasks' = [t \in DOMAIN tasks |-> [tasks[t] EXCEPT !.lost = tasks[t].rows]]
    /\ LET living == {r \in Requests : liveGen[r] # NoTenant}
       IN  /\ liveGen' = [r \in Requests |-> IF r \in living
                            THEN gens + Cardinality({q \in living : liveGen[q] <= liveGen[r]}) ELSE NoTenant]
           /\ gens' = gens + Cardinality(living)
    /\ openTask' = [r \in Requests |-> NoTask]
    /\ eng' = [eng EXCEPT !.up = Range(openTask) \ {NoTask}]
    /\ epoch' = epoch + 1
    /\ Release
    /\ UNCHANGED <<tids, known, stepVars, reads, failed, closed, queueVars, recordVars, budgetVars, holders, memVars,
                   bld, rdr, com, schedVars>>

\* Later calls raise, and so does a save that waits for a page.
ShutdownBegin ==
    /\ CanShutdown /\ Free("state") /\ ~closed
    /\ closed' = TRUE
    /\ com' = [com EXCEPT !["closer"].pc = "closing"]
    /\ UNCHANGED <<slotVars, reqVars, stepVars, reads, failed, epoch, taskVars, holders, memVars, lock, eng, bld, rdr,
                   schedVars>>

\* The threads are joined: what steps and reads still hold is released.
ShutdownEnd ==
    /\ ToEnd /\ MayEnter("closer")
    /\ reads' = Over(DOMAIN reads)
    /\ begun' = NoStep /\ steps' = <<>> /\ consumed' = consumed \cup DOMAIN steps
    /\ liveGen' = [r \in Requests |-> NoTenant] /\ openTask' = [r \in Requests |-> NoTask]
    /\ com' = [com EXCEPT !["closer"] = [@ EXCEPT !.pc = "ended",
                !.todo = {<<steps[k], <<"step", k>>>> : k \in DOMAIN steps}]]
    /\ Release
    /\ UNCHANGED <<slotVars, gens, tids, known, saved, given, flagVars, taskVars, holders, memVars, eng, bld,
                   rdr, schedVars>>
=============================================================================
