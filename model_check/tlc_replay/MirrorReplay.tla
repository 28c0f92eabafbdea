---------------------------- MODULE MirrorReplay ----------------------------
(* Traces of the host mirror, one event after the other, as behaviors of HostMirror. `Traces` is in TraceFile,   *)
(* which is written for each batch. An event is accepted when the action of its name is possible and leaves what *)
(* the code logged. A trace has one layer of the target model, one of the draft model (if `drafts`), and the hot *)
(* rows of one request state; a projection also has a few host blocks only. Streams do what they are given at    *)
(* once, but for the copies of a trace that tells of them (`observed`): those run at their event.                *)
EXTENDS HostMirror, TraceFile, TLC

CONSTANT Explained  \* whether a rejection is to be explained

VARIABLES trace,  \* which trace
          cursor, \* the next event; 0 when the verdict was said
          landed  \* rows that have landed and were not told of

ASSUME Traces # <<>>  \* else the class that reads them is not there

Trace == Traces[trace]
Due == cursor \in 1..Len(Trace.events)
E == Trace.events[cursor]

-----------------------------------------------------------------------------
(* What the scheduler asked for. It stands for Schedules. Which rows attention selects is told by their event.   *)

ToStep(p) == [copies |-> p.copies, given |-> Range(p.given), restores |-> p.restores, moves |-> p.moves, rows |-> p.rows,
              deferred |-> p.deferred, hot |-> <<>>, imports |-> p.imports]
Plan(i) == [k \in DOMAIN Traces[i].plans |-> ToStep(Traces[i].plans[k])]
AllPlans == {Plan(i) : i \in DOMAIN Traces}

-----------------------------------------------------------------------------
(* What the events say, in the words of the specification. A row on its way is <<layer, host block, offset, page>>. *)

Seen(x) == x[1] = "copy" /\ (x[2] = "target" \/ Trace.drafts)
Moving(x) == <<x[2], x[4], x[5], x[3]>>
HandedAs(e) ==
    LET r == e.rank
        new == SubSeq(copies'[r], Len(copies[r]) + 1, Len(copies'[r]))
    IN  {Moving(x) : x \in {y \in Range(new) : Seen(y)}} = Range(e.handed)
HotAs(e) == table'[e.rank] = Range(e.hot)
StaleAs(e) == stale'[e.rank] = Range(e.stale)
WaitingAs(e) == {t.id : t \in Range(after'[e.rank])} = Range(e.waiting)
Ended(q) == {x[2] : x \in {y \in Range(q) : y[1] = "end"}}
EnqueuedAs(e) == (IF e.rank # Writer THEN {} ELSE Ended(compute'[Writer]) \cup Ended(copies'[Writer]) \cup (acked' \ taken'))
                    = Range(e.enqueued)
PlacesOf(rs) == {<<x.hb, x.off, x.db>> : x \in Range(rs)}
\* A hot row, or one that is fetched now, is the row that stands.
RightRow(r, s) ==
    LET due == truth[s[1]][s[2]]
    IN  due # Nothing => (IF s \in missing[r] THEN host[s[1]][s[2]]["target"] ELSE hot[r][s]) = due

-----------------------------------------------------------------------------
(* One event.                                                                                                    *)

\* The code hears of those ends that its queries have seen.
TakeSome(e) == /\ e.rank = Writer /\ pc[Writer] # "closed" /\ Range(e.taken) \subseteq acked \ taken
               /\ IF Range(e.taken) = acked \ taken THEN TakeCompletedTransfers(Writer)
                  ELSE /\ taken' = taken \cup Range(e.taken)
                       /\ UNCHANGED <<memory, streams, pc, at, current, rows, after, hotness, dirty, agenda, imported, ghosts>>
\* The ranks meet once; each of them tells.
MeetOrMet(r) == IF pc[r] = "meeting" THEN Meet ELSE Shared /\ pc[r] = "met" /\ UNCHANGED vars
Forget(r) == IF table[r] = {} THEN Between(r) /\ UNCHANGED vars ELSE ForgetState(r)
Open(r) == pc[r] # "closed" /\ UNCHANGED vars

Act(e) ==
    CASE e.action = "import_rows" -> e.rank = Writer /\ ImportRows
      [] e.action = "forget_state" -> Forget(e.rank)
      [] e.action = "await_writes" -> AwaitWrites(e.rank)
      [] e.action = "meet" -> MeetOrMet(e.rank)
      [] e.action = "copy_host_blocks" -> Now(e.rank).copies # <<>> /\ CopyHostBlocks(e.rank)
      [] e.action = "start_transfers" -> StartTransfers(e.rank)
      [] e.action = "invalidate_blocks" -> InvalidateBlocks(e.rank)
      [] e.action = "write" -> Write(e.rank, e.layer)
      [] e.action = "select" -> Select(e.rank)
      [] e.action = "gather" -> Gather(e.rank)
      [] e.action = "finish_target" -> FinishTarget(e.rank)
      [] e.action = "finish_drafts" -> FinishDrafts(e.rank)
      [] e.action = "finish_step" -> FinishStep(e.rank)
      [] e.action = "take_completed_transfers" -> TakeSome(e)
      [] e.action = "shutdown" -> Shutdown(e.rank)
      [] e.action = "compute_runs" -> Open(e.rank) /\ compute[e.rank] = <<>>  \* the caller has waited
      [] e.action = "copy_runs" -> Open(e.rank) /\ landed # {}
      [] OTHER -> FALSE

\* What the event must have left, by the name of what it is about.
Left(e) ==
    CASE e.action = "import_rows" -> [rows |-> {<<x[1], x[2]>> : x \in Range(StepAt(at[Writer] + 1).imports)} = Range(e.slots)]
      [] e.action = "await_writes" -> [event |-> current[e.rank] = e.waits /\ Other(current'[e.rank]) = e.next]
      [] e.action = "meet" -> [event |-> Other(current'[e.rank]) = e.next]
      [] e.action = "copy_host_blocks" -> [copies |-> Now(e.rank).copies = e.copies, writer |-> e.wrote = (e.rank = Writer)]
      [] e.action = "start_transfers" ->
            [handed |-> HandedAs(e), waiting |-> WaitingAs(e), enqueued |-> EnqueuedAs(e), stale |-> StaleAs(e),
             rows |-> PlacesOf(rows'[e.rank]) = Range(e.places)]
      [] e.action \in {"forget_state", "invalidate_blocks"} -> [hot |-> HotAs(e)]
      [] e.action = "write" ->
            [handed |-> HandedAs(e),
             rows |-> PlacesOf(IF e.layer = "target" THEN Now(e.rank).rows ELSE Accepted(Now(e.rank).rows)) \subseteq Range(e.places)]
      [] e.action = "select" -> [hot |-> HotAs(e), missing |-> missing'[e.rank] = Range(e.missing),
                                 rows |-> {<<h[1], h[2]>> : h \in Range(Now(e.rank).hot)} = Range(e.slots)]
      [] e.action = "gather" -> [rows |-> {<<h[1], h[2]>> : h \in Range(Now(e.rank).hot)} = Range(e.slots),
                                 hot |-> \A s \in Range(e.slots) : RightRow(e.rank, s)]
      [] e.action = "finish_target" -> [handed |-> HandedAs(e), hot |-> HotAs(e)]
      [] e.action = "finish_drafts" -> [handed |-> HandedAs(e)]
      [] e.action = "finish_step" ->
            [handed |-> HandedAs(e), waiting |-> WaitingAs(e), enqueued |-> EnqueuedAs(e), stale |-> StaleAs(e)]
      [] e.action = "compute_runs" -> [restored |-> Range(e.restored) \subseteq {t.db : t \in Range(Now(e.rank).restores)}]
      [] e.action = "copy_runs" -> [rows |-> landed = Range(e.rows)]
      [] OTHER -> [nothing |-> TRUE]

Take(e) == Act(e) /\ LET left == Left(e) IN \A what \in DOMAIN left : left[what]

-----------------------------------------------------------------------------
(* What happens between two events.                                                                              *)

Computes(r) == compute[r] # <<>> /\ Runnable(r, Head(compute[r]))
Lands(r) == Due /\ E.action = "copy_runs" /\ E.rank = r
Unseen(x) == x[1] = "copy" /\ (~Trace.observed \/ ~Seen(x))
Passes(r) ==
    /\ copies[r] # <<>>
    /\ LET x == Head(copies[r]) IN
        CASE x[1] = "wait" -> Runnable(r, x) /\ (Unseen(copies[r][2]) \/ (Lands(r) /\ landed = {}))
          [] x[1] = "copy" -> Unseen(x) \/ Lands(r)
          [] OTHER -> TRUE
Streams ==
    IF \E r \in Ranks : Computes(r)
    THEN ComputeRuns(CHOOSE r \in Ranks : Computes(r)) /\ UNCHANGED landed
    ELSE LET r == CHOOSE q \in Ranks : Passes(q)
             x == Head(copies[r])
         IN  CopyRuns(r) /\ landed' = IF Seen(x) /\ ~Unseen(x) THEN landed \cup {Moving(x)} ELSE landed
Streaming == \E r \in Ranks : Computes(r) \/ Passes(r)

\* Steps that leave no event: a copy of no blocks, hot rows that make room for others or were written without a mirror,
\* layers that a graph ran, draft layers that are not there.
CopiesNothing(r) == E.action = "start_transfers" /\ pc[r] = "met" /\ Now(r).copies = <<>>
Evicts(r) == E.action \in {"select", "finish_target"} /\ ~(table[r] \subseteq Range(E.hot) \cup Slots(Now(r).rows))
Evict(r) == /\ table' = [table EXCEPT ![r] = @ \cap (Range(E.hot) \cup Slots(Now(r).rows))]
            /\ UNCHANGED <<memory, streams, pc, at, current, rows, after, stale, missing, dirty, agenda, imported, taken, ghosts>>
Asks(r) == E.action = "select" /\ at[r] \in DOMAIN agenda /\ Now(r).hot = <<>>
Ask(r) == /\ agenda' = [agenda EXCEPT ![at[r]].hot = [i \in DOMAIN E.slots |-> E.slots[i] \o <<0, 0>>]]
          /\ UNCHANGED <<memory, streams, pc, at, current, rows, after, hotness, dirty, imported, taken, ghosts>>
RunsInGraph(r) == E.action = "finish_target" /\ pc[r] = "started" /\ Now(r).rows # <<>> /\ stale[r] = {}
DraftsInGraph(r) == E.action \in {"finish_drafts", "finish_step"} /\ pc[r] = "target" /\ Now(r).rows # <<>>
NoDrafts(r) == E.action = "finish_step" /\ pc[r] = "drafted" /\ ~Trace.drafts
Silently(r) == CopiesNothing(r) \/ Evicts(r) \/ Asks(r) \/ RunsInGraph(r) \/ DraftsInGraph(r) \/ NoDrafts(r)
Silent(r) ==
    /\ IF CopiesNothing(r) THEN CopyHostBlocks(r)
       ELSE IF Evicts(r) THEN Evict(r)
       ELSE IF Asks(r) THEN Ask(r)
       ELSE IF RunsInGraph(r) THEN Write(r, "target")
       ELSE IF DraftsInGraph(r) THEN Write(r, "draft")
       ELSE FinishDrafts(r)
    /\ UNCHANGED landed

-----------------------------------------------------------------------------
(* The replay.                                                                                                   *)

TraceInit == trace \in DOMAIN Traces /\ cursor = 1 /\ landed = {} /\ Init /\ agenda = Plan(trace)

Stay == UNCHANGED <<trace, cursor>>
Say(what) == PrintT("PALIMPSEST " \o ToString(what)) /\ cursor' = 0 /\ UNCHANGED <<vars, trace, landed>>

\* Why: the parts of what it left that no step of the action leaves, or "guard" where the action is not possible.
Parts == {"rows", "event", "copies", "writer", "handed", "waiting", "enqueued", "stale", "hot", "missing", "restored"}
Why == IF ENABLED Act(E)
       THEN {what \in Parts : /\ ENABLED (Act(E) /\ what \in DOMAIN Left(E))
                              /\ ~ENABLED (Act(E) /\ Left(E)[what])}
       ELSE {"guard"}
Told == [pc |-> pc, at |-> at, current |-> current, compute |-> compute, copies |-> copies, landed |-> landed, table |-> table,
         missing |-> missing, stale |-> stale, rows |-> rows, after |-> after, acked |-> acked, taken |-> taken]

TraceNext ==
    /\ cursor # 0
    /\ IF Streaming THEN Streams /\ Stay
       ELSE IF ~Due THEN Say(<<"ACCEPT", Trace.name, Len(Trace.events)>>)
       ELSE IF Silently(E.rank) THEN Silent(E.rank) /\ Stay
       ELSE \/ Take(E) /\ cursor' = cursor + 1 /\ landed' = {} /\ UNCHANGED trace
            \/ Explained /\ ~ENABLED Take(E) /\ Say(<<"REJECT", Trace.name, cursor, E.seq, E.action, Why, Told>>)

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, cursor, landed>>
=============================================================================
