----------------------------- MODULE HostMirror -----------------------------
(* The protocol of the host mirror, and what must hold of it. Start at `Next`: each line is one function of   *)
(* the worker or of the mirror, and one event of a trace, or the device. What a function queues on a stream   *)
(* happens later, in that stream's order and in no other: ComputeRuns and CopyRuns are the device. Bounds and *)
(* schedules are in the models.                                                                               *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Ranks, Writer,         \* the processes that share the pool, and the one that writes it
    HostBlocks, DevBlocks, \* pages of the pool, and of each rank's device
    Offsets,               \* rows of a page
    Schedules,             \* what a scheduler may ask for: sequences of steps, see `IdleStep`
    Eager,                 \* deferred rows are mirrored as they are written; otherwise their pages are moved
    CanShutdown            \* the mirror may be shut down in any step

Layers == {"target", "draft"}
Nothing == <<>>            \* no row, yet or any more; a row is <<request generation, position, step>>
Blank(B) == [b \in B |-> [o \in Offsets |-> [l \in Layers |-> Nothing]]]
NoRows(B) == [b \in B |-> [o \in Offsets |-> Nothing]]
Range(s) == {s[i] : i \in DOMAIN s}

\* What one step asks for: blocks copied <<from, to>>, blocks with a new tenant, pages to restore and to move
\* [id, hb, db, after], rows [db, hb, off, gen, pos, ok] and whether some may be rejected, rows <<hb, off, gen, pos>>
\* that attention selects off the device, rows <<hb, off, gen, pos>> that were computed elsewhere.
IdleStep == [copies |-> <<>>, given |-> {}, restores |-> <<>>, moves |-> <<>>, rows |-> <<>>, deferred |-> FALSE,
             hot |-> <<>>, imports |-> <<>>]

VARIABLES
    (* memory *)
    host,      \* the pool: block, offset, layer -> row
    dev,       \* each rank's pages likewise
    hot,       \* each rank's hot rows: what was fetched of a host slot <<hb, off>>
    registered,
    (* streams and events *)
    compute,   \* what is queued on the stream of each rank's forwards
    copies,    \* what is queued on its copy stream
    issued,    \* how often each event was recorded by a rank: two for host writes, one for written rows
    reached,   \* the last of these records that its stream got to
    acked,     \* transfers whose end the writer's streams got to
    (* each rank's worker *)
    pc, at,    \* where it is in which step
    current,   \* the event that this step's host writes record
    rows,      \* row mirrors of the step
    after,     \* transfers that wait for the step's rows
    table,     \* host slots that the rank believes to be hot
    stale,     \* host blocks with a new tenant whose hot rows are still to be forgotten
    missing,   \* host slots that are selected and have to be fetched
    dirty,     \* the phase handed something to the copy stream
    agenda,
    imported,  \* the last step whose imports are done
    taken,     \* transfers that were acknowledged to the scheduler
    (* what should be, and what went wrong *)
    truth,     \* accepted row of each host slot
    placed,    \* row that program order puts on each rank's device
    wanted,    \* rows that a transfer to the host stands for, by its id
    rejected,  \* rows that were rejected
    wrote,     \* ranks that wrote the pool
    sent,      \* <<step, layer, host slot>> handed to the copy stream
    faults

memory == <<host, dev, hot, registered>>
streams == <<compute, copies, issued, reached, acked>>
hotness == <<table, stale, missing>>
worker == <<pc, at, current, rows, after, hotness, dirty, agenda, imported, taken>>
ghosts == <<truth, placed, wanted, rejected, wrote, sent, faults>>
vars == <<memory, streams, worker, ghosts>>

Events == {"even", "odd", "ready"}
Other(e) == IF e = "even" THEN "odd" ELSE "even"
StepAt(k) == IF k \in DOMAIN agenda THEN agenda[k] ELSE IdleStep
Now(r) == StepAt(at[r])
Shared == Cardinality(Ranks) > 1

TypeOK ==
    /\ pc \in [Ranks -> {"idle", "meeting", "met", "copied", "started", "written", "selected", "gathered", "target",
                          "drafted", "drafts", "closed"}]
    /\ at \in [Ranks -> 0..(Len(agenda) + 1)] /\ current \in [Ranks -> {"even", "odd"}]
    /\ \A r \in Ranks : \A e \in Events : reached[r][e] <= issued[r][e]
    /\ taken \subseteq acked /\ registered \in BOOLEAN /\ dirty \in [Ranks -> BOOLEAN]

Init ==
    /\ host = Blank(HostBlocks) /\ dev = [r \in Ranks |-> Blank(DevBlocks)]
    /\ hot = [r \in Ranks |-> [s \in HostBlocks \X Offsets |-> Nothing]] /\ registered = TRUE
    /\ compute = [r \in Ranks |-> <<>>] /\ copies = [r \in Ranks |-> <<>>]
    /\ issued = [r \in Ranks |-> [e \in Events |-> 0]] /\ reached = issued /\ acked = {}
    /\ pc = [r \in Ranks |-> "idle"] /\ at = [r \in Ranks |-> 0] /\ current = [r \in Ranks |-> "odd"]
    /\ rows = [r \in Ranks |-> <<>>] /\ after = rows /\ table = [r \in Ranks |-> {}]
    /\ stale = table /\ missing = table /\ dirty = [r \in Ranks |-> FALSE]
    /\ agenda \in Schedules /\ imported = 0 /\ taken = {}
    /\ truth = NoRows(HostBlocks) /\ placed = [r \in Ranks |-> NoRows(DevBlocks)]
    /\ wanted = <<>> /\ rejected = {} /\ wrote = {} /\ sent = {} /\ faults = {}

-----------------------------------------------------------------------------
(* Streams. An entry of a queue is <<what, ...>>. A wait is for the record that was the last when it was queued. *)

Runnable(r, x) == IF x[1] = "wait" THEN reached[r][x[2]] >= x[3] ELSE TRUE
Reach(r, x) == reached' = IF x[1] = "record" THEN [reached EXCEPT ![r][x[2]] = x[3]] ELSE reached
Acknowledge(x) == acked' = IF x[1] = "end" THEN acked \cup {x[2]} ELSE acked

\* The device does the next thing on a rank's forward stream. (Environment.)
ComputeRuns(r) ==
    /\ compute[r] # <<>>
    /\ LET x == Head(compute[r]) IN
        /\ Runnable(r, x)
        /\ compute' = [compute EXCEPT ![r] = Tail(@)]
        /\ Reach(r, x) /\ Acknowledge(x)
        /\ dev' = CASE x[1] = "write" -> [dev EXCEPT ![r][x[3]][x[4]][x[2]] = x[5]]
                    [] x[1] = "restore" -> [dev EXCEPT ![r][x[3]] = host[x[2]]]
                    [] OTHER -> dev
        /\ hot' = IF x[1] = "fetch" THEN [hot EXCEPT ![r][x[2]] = host[x[2][1]][x[2][2]]["target"]] ELSE hot
        /\ faults' = IF x[1] = "use" /\ SubSeq(hot[r][x[2]], 1, 2) # x[3] THEN faults \cup {"stale hot row"} ELSE faults
    /\ UNCHANGED <<host, registered, copies, issued, worker, truth, placed, wanted, rejected, wrote, sent>>

\* The device does the next thing on a rank's copy stream: a row goes to the host as it is then. (Environment.)
CopyRuns(r) ==
    /\ copies[r] # <<>>
    /\ LET x == Head(copies[r]) IN
        /\ Runnable(r, x)
        /\ copies' = [copies EXCEPT ![r] = Tail(@)]
        /\ Reach(r, x) /\ Acknowledge(x)
        /\ host' = IF x[1] = "copy" THEN [host EXCEPT ![x[4]][x[5]][x[2]] = dev[r][x[3]][x[5]][x[2]]] ELSE host
        /\ wrote' = IF x[1] = "copy" THEN wrote \cup {r} ELSE wrote
    /\ UNCHANGED <<dev, hot, registered, compute, issued, worker, truth, placed, wanted, rejected, sent, faults>>

RECURSIVE Flat(_)
Flat(ss) == IF ss = <<>> THEN <<>> ELSE Head(ss) \o Flat(Tail(ss))
Each(s, Op(_)) == [i \in 1..Len(s) |-> Op(s[i])]
Wait(r, e) == <<"wait", e, issued[r][e]>>
Recorded(r, e) == <<"record", e, issued[r][e] + 1>>

RowCopies(rs, l) == Each(rs, LAMBDA x : <<"copy", l, x.db, x.hb, x.off>>)
PageCopies(t) == Flat([i \in 1..Cardinality(Offsets) |->
                    << <<"copy", "target", t.db, t.hb, i - 1>>, <<"copy", "draft", t.db, t.hb, i - 1>> >>])
Ends(ts) == Each(ts, LAMBDA t : <<"end", t.id>>)

Moves(ts) == Flat(Each(ts, PageCopies))

\* Transfers to the host are copies of pages, unless each row was mirrored as it was written: then there is only an end.
WritesPages(r, ts) == r = Writer /\ ~Eager /\ ts # <<>>

\* Hand `what` to the copy stream, behind all that the forward stream has been given: `ready` is recorded there and
\* waited for here; the step's event is recorded behind it, and transfers end there. Then the forward stream waits for
\* it, if `order`.
Submit(r, given, what, ends, order) ==
    LET e == current[r]
        onCompute == given \o <<Recorded(r, "ready")>>
        wait == <<"wait", e, issued[r][e] + 1>>
    IN  /\ compute' = [compute EXCEPT ![r] = @ \o onCompute \o (IF order THEN <<wait>> ELSE <<>>)]
        /\ copies' = [copies EXCEPT ![r] = @ \o << <<"wait", "ready", issued[r]["ready"] + 1>> >> \o what
                                              \o <<Recorded(r, e)>> \o ends]
        /\ issued' = [issued EXCEPT ![r]["ready"] = @ + 1, ![r][e] = @ + 1]
        /\ dirty' = [dirty EXCEPT ![r] = ~order]

\* Nothing for the copy stream: the step's event is recorded on the forward stream, unless a copy of the phase has
\* it already, which the forward stream then waits for.
Pass(r, ends) ==
    LET e == current[r] IN
    /\ dirty' = [dirty EXCEPT ![r] = FALSE]
    /\ copies' = [copies EXCEPT ![r] = @ \o ends]
    /\ IF dirty[r] THEN /\ compute' = [compute EXCEPT ![r] = Append(@, Wait(r, e))]
                        /\ UNCHANGED issued
                   ELSE /\ compute' = [compute EXCEPT ![r] = Append(@, Recorded(r, e))]
                        /\ issued' = [issued EXCEPT ![r][e] = @ + 1]

-----------------------------------------------------------------------------
(* A step, as each rank's worker does it.                                                                    *)

Landed(r, e) == reached[r][e] = issued[r][e]

RECURSIVE Imported(_, _, _)
Imported(f, xs, k) ==
    IF xs = <<>> THEN f
    ELSE LET x == Head(xs) IN
         Imported([f EXCEPT ![x[1]][x[2]] = [l \in Layers |-> <<x[3], x[4], k>>]], Tail(xs), k)
RECURSIVE Known(_, _, _)
Known(f, xs, k) ==
    IF xs = <<>> THEN f ELSE Known([f EXCEPT ![Head(xs)[1]][Head(xs)[2]] = <<Head(xs)[3], Head(xs)[4], k>>], Tail(xs), k)

\* Between two steps. A step without rows need not be finished.
Between(r) == pc[r] = "idle" \/ (pc[r] = "started" /\ Now(r).rows = <<>> /\ Now(r).hot = <<>> /\ after[r] = <<>>)

\* Rows that were computed elsewhere come into the pool, before the step that shows them: all ranks are there or meet
\* already, and what they queued for the host has landed. The writer does it.
ImportRows ==
    LET k == at[Writer] + 1
        new == StepAt(k).imports
    IN  /\ new # <<>> /\ imported < k
        /\ Between(Writer) /\ \A r \in Ranks : Landed(r, current[r])
        /\ \A r \in Ranks : (Between(r) /\ at[r] = at[Writer]) \/ (pc[r] = "meeting" /\ at[r] = k)
        /\ imported' = k
        /\ host' = Imported(host, new, k) /\ truth' = Known(truth, new, k)
        /\ wrote' = wrote \cup {Writer}
    /\ UNCHANGED <<dev, hot, registered, streams, pc, at, current, rows, after, hotness, dirty, agenda, taken, placed,
                   wanted, rejected, sent, faults>>

\* A request comes to the rank: no hot row of an earlier one is its.
ForgetState(r) ==
    /\ Between(r) /\ table[r] # {}
    /\ table' = [table EXCEPT ![r] = {}]
    /\ UNCHANGED <<memory, streams, pc, at, current, rows, after, stale, missing, dirty, agenda, imported, taken, ghosts>>

\* The step begins: the forward stream waits for the host writes of the last one. Ranks that share a pool meet.
AwaitWrites(r) ==
    /\ Between(r) /\ at[r] <= Len(agenda) /\ (r # Writer \/ StepAt(at[r] + 1).imports = <<>> \/ imported > at[r])
    /\ pc' = [pc EXCEPT ![r] = IF Shared THEN "meeting" ELSE "met"]
    /\ at' = [at EXCEPT ![r] = @ + 1]
    /\ compute' = [compute EXCEPT ![r] = Append(@, Wait(r, current[r]))]
    /\ IF Shared THEN UNCHANGED current ELSE current' = [current EXCEPT ![r] = Other(@)]
    /\ UNCHANGED <<memory, copies, issued, reached, acked, rows, after, hotness, dirty, agenda, imported, taken, ghosts>>

\* All ranks have come, each behind its own last step: what the writer wrote has landed, and nobody reads any more.
Meet ==
    /\ Shared /\ \A r \in Ranks : pc[r] = "meeting" /\ Landed(r, current[r])
    /\ pc' = [r \in Ranks |-> "met"]
    /\ current' = [r \in Ranks |-> Other(current[r])]
    /\ UNCHANGED <<memory, streams, at, rows, after, hotness, dirty, agenda, imported, taken, ghosts>>

Pending(b) == \E i \in DOMAIN copies[Writer] : copies[Writer][i][1] = "copy" /\ copies[Writer][i][4] = b
RECURSIVE Copied(_, _)
Copied(f, cs) == IF cs = <<>> THEN f ELSE [Copied(f, SubSeq(cs, 1, Len(cs) - 1)) EXCEPT ![cs[Len(cs)][2]] = f[cs[Len(cs)][1]]]

\* The writer copies host blocks once the last step's host writes have landed; the other ranks wait for it.
CopyHostBlocks(r) ==
    /\ pc[r] = "met"
    /\ r = Writer \/ Now(r).copies = <<>> \/ at[Writer] > at[r] \/ (at[Writer] = at[r] /\ pc[Writer] # "met")
    /\ pc' = [pc EXCEPT ![r] = "copied"]
    /\ IF r = Writer /\ Now(r).copies # <<>>
       THEN /\ Landed(r, Other(current[r]))
            /\ host' = Copied(host, Now(r).copies) /\ truth' = Copied(truth, Now(r).copies)
            /\ faults' = IF \E c \in Range(Now(r).copies) : Pending(c[1]) THEN faults \cup {"early host copy"} ELSE faults
            /\ wrote' = wrote \cup {r}
       ELSE UNCHANGED <<host, truth, faults, wrote>>
    /\ UNCHANGED <<dev, hot, registered, streams, at, current, rows, after, hotness, dirty, agenda, imported, taken,
                   placed, wanted, rejected, sent>>

\* Blocks with a new tenant hold none of its rows yet, unless they were copied or imported.
Fresh(f) == LET filled == {c[2] : c \in Range(Now(Writer).copies)} \cup {x[1] : x \in Range(Now(Writer).imports)}
            IN  [b \in HostBlocks |-> IF b \in Now(Writer).given \ filled THEN [o \in Offsets |-> Nothing] ELSE f[b]]
RECURSIVE Restored(_, _, _)
Restored(f, ts, from) ==
    IF ts = <<>> THEN f ELSE Restored([f EXCEPT ![Head(ts).db] = from[Head(ts).hb]], Tail(ts), from)
RowOf(r, x) == <<x.gen, x.pos, at[r]>>
Accepted(rs) == SelectSeq(rs, LAMBDA x : x.ok)
RECURSIVE Stand(_, _, _)
Stand(r, f, rs) ==
    IF rs = <<>> THEN f ELSE Stand(r, [f EXCEPT ![Head(rs).hb][Head(rs).off] = RowOf(r, Head(rs))], Tail(rs))
Wants(ts, f) == [i \in {t.id : t \in Range(ts)} |->
                    LET t == CHOOSE x \in Range(ts) : x.id = i IN [hb |-> t.hb, rows |-> f[t.hb]]]
Merge(f, g) == [i \in DOMAIN f \cup DOMAIN g |-> IF i \in DOMAIN g THEN g[i] ELSE f[i]]

\* Pages come back on the forward stream; pages that are full already go to the host. The step has its own rows, or none.
\* Its event is recorded also where nothing else follows, so that whoever waits for it waits for the steps before.
StartTransfers(r) ==
    /\ pc[r] = "copied"
    /\ LET s == Now(r)
           early == SelectSeq(s.moves, LAMBDA t : ~t.after)
           restores == Each(s.restores, LAMBDA t : <<"restore", t.hb, t.db>>)
           ends == IF r = Writer THEN Ends(s.restores) ELSE <<>>
       IN  /\ pc' = [pc EXCEPT ![r] = "started"]
           /\ rows' = [rows EXCEPT ![r] = s.rows]
           /\ after' = [after EXCEPT ![r] = SelectSeq(s.moves, LAMBDA t : t.after)]
           /\ stale' = [stale EXCEPT ![r] = @ \cup s.given]
           /\ IF WritesPages(r, early)
              THEN Submit(r, restores \o ends, Moves(early), Ends(early), FALSE)
              ELSE /\ compute' = [compute EXCEPT ![r] = @ \o restores \o ends \o <<Recorded(r, current[r])>>]
                   /\ copies' = [copies EXCEPT ![r] = IF r = Writer THEN @ \o Ends(early) ELSE @]
                   /\ issued' = [issued EXCEPT ![r][current[r]] = @ + 1]
                   /\ dirty' = [dirty EXCEPT ![r] = FALSE]
           /\ placed' = [placed EXCEPT ![r] = Restored(@, s.restores, truth)]
           /\ truth' = IF r = Writer THEN Fresh(truth) ELSE truth
           /\ wanted' = IF r # Writer THEN wanted
                        ELSE Merge(wanted, Merge(Wants(early, truth),
                                                 Wants(after'[r], Stand(r, Fresh(truth), Accepted(s.rows)))))
    /\ UNCHANGED <<memory, reached, acked, at, current, table, missing, agenda, imported, taken, rejected, wrote, sent,
                   faults>>

\* Before its forward writes or selects, the rank forgets the hot rows of blocks with a new tenant.
InvalidateBlocks(r) ==
    /\ pc[r] = "started" /\ stale[r] # {}
    /\ stale' = [stale EXCEPT ![r] = {}]
    /\ table' = [table EXCEPT ![r] = {x \in @ : x[1] \notin stale[r]}]
    /\ UNCHANGED <<memory, streams, pc, at, current, rows, after, missing, dirty, agenda, imported, taken, ghosts>>

Writes(r, rs, l) == Each(rs, LAMBDA x : <<"write", l, x.db, x.off, RowOf(r, x)>>)
RECURSIVE Put(_, _, _)
Put(r, f, rs) == IF rs = <<>> THEN f ELSE Put(r, [f EXCEPT ![Head(rs).db][Head(rs).off] = RowOf(r, Head(rs))], Tail(rs))
Slots(rs) == {<<x.hb, x.off>> : x \in Range(rs)}
Sending(r, rs, l) == {<<at[r], l, x.hb, x.off>> : x \in Range(rs)}
\* Ghosts of a hand-over of rows to the copy stream.
Send(r, rs, l) ==
    /\ faults' = IF Sending(r, rs, l) \cap sent # {} THEN faults \cup {"mirrored twice"} ELSE faults
    /\ sent' = sent \cup Sending(r, rs, l)

\* A layer writes its rows: the target's in the forward, the draft's behind it and only those that stand. Where no row
\* can be rejected they are handed on at once.
Write(r, l) ==
    /\ IF l = "target" THEN pc[r] = "started" /\ stale[r] = {} ELSE pc[r] = "target"
    /\ Now(r).rows # <<>>
    /\ LET s == Now(r)
           mine == IF l = "target" THEN s.rows ELSE Accepted(s.rows)
           given == Writes(r, mine, l)
       IN  /\ pc' = [pc EXCEPT ![r] = IF l = "target" THEN "written" ELSE "drafted"]
           /\ placed' = IF l = "target" THEN [placed EXCEPT ![r] = Put(r, @, s.rows)] ELSE placed
           /\ IF r = Writer /\ mine # <<>> /\ ~s.deferred
              THEN Submit(r, given, RowCopies(mine, l), <<>>, FALSE) /\ Send(r, mine, l)
              ELSE /\ compute' = [compute EXCEPT ![r] = @ \o given]
                   /\ UNCHANGED <<copies, issued, dirty, sent, faults>>
    /\ UNCHANGED <<memory, reached, acked, at, current, rows, after, hotness, agenda, imported, taken, truth, wanted,
                   rejected, wrote>>

\* Attention selects rows that are not on the device; those that are not hot are to be fetched.
Select(r) ==
    /\ Now(r).hot # <<>> /\ stale[r] = {}
    /\ pc[r] = "written" \/ (pc[r] = "started" /\ Now(r).rows = <<>>)
    /\ LET chosen == {<<h[1], h[2]>> : h \in Range(Now(r).hot)}
       IN  /\ table' = [table EXCEPT ![r] = @ \cup chosen]
           /\ missing' = [missing EXCEPT ![r] = chosen \ table[r]]
    /\ pc' = [pc EXCEPT ![r] = "selected"]
    /\ UNCHANGED <<memory, streams, at, current, rows, after, stale, dirty, agenda, imported, taken, ghosts>>

\* They are fetched, and attention gets what was selected.
Gather(r) ==
    /\ pc[r] = "selected"
    /\ LET uses == Flat(Each(Now(r).hot, LAMBDA h :
                       (IF <<h[1], h[2]>> \in missing[r] THEN << <<"fetch", <<h[1], h[2]>> >> >> ELSE <<>>)
                       \o << <<"use", <<h[1], h[2]>>, <<h[3], h[4]>> >> >>))
       IN  compute' = [compute EXCEPT ![r] = @ \o uses]
    /\ missing' = [missing EXCEPT ![r] = {}]
    /\ pc' = [pc EXCEPT ![r] = "gathered"]
    /\ UNCHANGED <<memory, copies, issued, reached, acked, at, current, rows, after, table, stale, dirty, agenda, imported,
                   taken, ghosts>>

\* The target's phase ends: rows that were accepted are handed on, those of other slots never. Rows that were written
\* are not hot any more.
FinishTarget(r) ==
    /\ CASE pc[r] = "started" -> Now(r).rows = <<>> /\ Now(r).hot = <<>>
         [] pc[r] = "written" -> Now(r).hot = <<>>
         [] OTHER -> pc[r] = "gathered"
    /\ LET s == Now(r)
           mirrored == Accepted(rows[r])
       IN  /\ pc' = [pc EXCEPT ![r] = "target"]
           /\ table' = [table EXCEPT ![r] = @ \ Slots(s.rows)]
           /\ IF r = Writer /\ mirrored # <<>> /\ (s.deferred \/ s.rows = <<>>) /\ Eager
              THEN Submit(r, <<>>, RowCopies(mirrored, "target"), <<>>, TRUE) /\ Send(r, mirrored, "target")
              ELSE Pass(r, <<>>) /\ UNCHANGED <<sent, faults>>
           /\ rejected' = rejected \cup {RowOf(r, x) : x \in {y \in Range(s.rows) : ~y.ok}}
    /\ UNCHANGED <<memory, reached, acked, at, current, rows, after, stale, missing, agenda, imported, taken, truth, placed,
                   wanted, wrote>>

\* The draft layers' phase ends: their rows are handed on where they were not at once. The step's rows stand.
FinishDrafts(r) ==
    /\ pc[r] = "drafted"
    /\ LET s == Now(r)
           kept == Accepted(s.rows)
       IN  /\ pc' = [pc EXCEPT ![r] = "drafts"]
           /\ IF r = Writer /\ kept # <<>> /\ s.deferred /\ Eager
              THEN Submit(r, <<>>, RowCopies(kept, "draft"), <<>>, TRUE) /\ Send(r, kept, "draft")
              ELSE Pass(r, <<>>) /\ UNCHANGED <<sent, faults>>
           /\ truth' = IF r = Writer THEN Stand(r, truth, kept) ELSE truth
    /\ UNCHANGED <<memory, reached, acked, at, current, rows, after, hotness, agenda, imported, taken, placed, wanted,
                   rejected, wrote>>

\* The transfers that waited for the step's rows, of every layer.
FinishStep(r) ==
    /\ pc[r] = "drafts" \/ (pc[r] = "target" /\ Now(r).rows = <<>>)
    /\ pc' = [pc EXCEPT ![r] = "idle"]
    /\ after' = [after EXCEPT ![r] = <<>>]
    /\ CASE WritesPages(r, after[r]) -> Submit(r, <<>>, Moves(after[r]), Ends(after[r]), TRUE)
         [] after[r] = <<>> -> UNCHANGED <<compute, copies, issued, dirty>>
         [] OTHER -> Pass(r, IF r = Writer THEN Ends(after[r]) ELSE <<>>)
    /\ UNCHANGED <<memory, reached, acked, at, current, rows, hotness, agenda, imported, taken, ghosts>>

\* The scheduler hears of transfers that have ended: at any time, so also on idle steps.
TakeCompletedTransfers(r) ==
    /\ pc[r] # "closed" /\ r = Writer /\ taken # acked
    /\ taken' = IF r = Writer THEN acked ELSE taken
    /\ UNCHANGED <<memory, streams, pc, at, current, rows, after, hotness, dirty, agenda, imported, ghosts>>

\* Memory is given back once nothing that reads or writes it is queued on a stream of any rank.
Shutdown(r) ==
    /\ CanShutdown /\ pc[r] # "closed"
    /\ compute[r] = <<>> /\ copies[r] = <<>>
    /\ pc' = [pc EXCEPT ![r] = "closed"]
    /\ registered' = (registered /\ \E q \in Ranks \ {r} : pc[q] # "closed")
    /\ UNCHANGED <<host, dev, hot, streams, at, current, rows, after, hotness, dirty, agenda, imported, taken, ghosts>>

Next ==
    \/ ImportRows
    \/ \E r \in Ranks : ForgetState(r)
    \/ \E r \in Ranks : AwaitWrites(r)
    \/ Meet
    \/ \E r \in Ranks : CopyHostBlocks(r)
    \/ \E r \in Ranks : StartTransfers(r)
    \/ \E r \in Ranks : InvalidateBlocks(r)
    \/ \E r \in Ranks, l \in Layers : Write(r, l)
    \/ \E r \in Ranks : Select(r)
    \/ \E r \in Ranks : Gather(r)
    \/ \E r \in Ranks : FinishTarget(r)
    \/ \E r \in Ranks : FinishDrafts(r)
    \/ \E r \in Ranks : FinishStep(r)
    \/ \E r \in Ranks : TakeCompletedTransfers(r)
    \/ \E r \in Ranks : Shutdown(r)
    \* ComputeRuns and CopyRuns are the environment's
    \/ \E r \in Ranks : ComputeRuns(r)
    \/ \E r \in Ranks : CopyRuns(r)

Spec == Init /\ [][Next]_vars

\* The device goes on, and so do runners in the middle of a step. Idle steps follow the last one.
Fairness ==
    /\ \A r \in Ranks : WF_vars(ComputeRuns(r)) /\ WF_vars(CopyRuns(r))
    /\ \A r \in Ranks : WF_vars(AwaitWrites(r) \/ CopyHostBlocks(r) \/ StartTransfers(r) \/ InvalidateBlocks(r)
                                \/ (\E l \in Layers : Write(r, l)) \/ Select(r) \/ Gather(r) \/ FinishTarget(r)
                                \/ FinishDrafts(r) \/ FinishStep(r))
    /\ \A r \in Ranks : WF_vars(TakeCompletedTransfers(r))
    /\ WF_vars(Meet) /\ WF_vars(ImportRows)
LiveSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
(* What must hold.                                                                                           *)

\* One rank writes the pool.
OneHostWriter == wrote \subseteq {Writer}

\* A copy of a host block reads no row that is still on its way.
HostCopyAfterWrites == "early host copy" \notin faults

\* When a transfer ends, each accepted row of its page is on the host in every layer, the draft's too.
Durable(i) == \A o \in Offsets : wanted[i].rows[o] # Nothing =>
                  \A l \in Layers : host[wanted[i].hb][o][l] = wanted[i].rows[o]
CleanMeansDurable == [][\A i \in acked' \ acked : i \in DOMAIN wanted => Durable(i)]_vars

\* Where rows are mirrored as they are written, and no copy is on its way, each accepted row is on the host.
Rests(r) == compute[r] = <<>> /\ copies[r] = <<>> /\ pc[r] = "idle"
EveryRowMirrored ==
    Eager /\ Rests(Writer) => \A b \in HostBlocks : \A o \in Offsets :
        truth[b][o] # Nothing => \A l \in Layers : host[b][o][l] = truth[b][o]

\* No rejected row lies on the host, in any layer.
AcceptedRowsOnly == \A b \in HostBlocks : \A o \in Offsets : \A l \in Layers : host[b][o][l] \notin rejected

\* An event that a step records is not one that some rank has yet to wait for.
EventNotReused ==
    [][\A r \in Ranks : \A e \in {"even", "odd"} : issued'[r][e] # issued[r][e] =>
          \A q \in Ranks : at[q] > at[r] \/ (at[q] = at[r] /\ pc[q] # "meeting")]_vars

\* When a rank's forward stream is through, its pages hold the rows that the order of the program put there.
RestoreKeepsRows ==
    \A r \in Ranks : compute[r] = <<>> /\ pc[r] = "idle" =>
        \A b \in DevBlocks : \A o \in Offsets : placed[r][b][o] # Nothing => dev[r][b][o]["target"] = placed[r][b][o]

\* Attention gets no row of an earlier tenant of a host slot, and no row that was written over.
NoRecycledHotRow == "stale hot row" \notin faults

\* A row of a layer is handed to the copy stream once.
MirroredOnce == "mirrored twice" \notin faults

\* Nothing is queued that would touch memory that is not registered.
Touches(x) == x[1] \in {"copy", "restore", "fetch"}
RegisteredWhileUsed ==
    registered \/ \A r \in Ranks : \A x \in Range(copies[r]) \cup Range(compute[r]) : ~Touches(x)

\* Each transfer that a step asked for is acknowledged, also where only idle steps follow.
Asked == UNION {{t.id : t \in Range(agenda[k].moves) \cup Range(agenda[k].restores)} : k \in DOMAIN agenda}
EveryTransferEnds == <>(Asked \subseteq taken)
=============================================================================
