----------------------------- MODULE WriteTasks -----------------------------
(* Write tasks from their queue to the pool, the waits for them, and the byte budget. Lock: task.          *)
EXTENDS StagingPages

InState(T, s) == [t \in DOMAIN tasks |-> IF t \in T THEN [tasks[t] EXCEPT !.state = s] ELSE tasks[t]]

-----------------------------------------------------------------------------
(* Queues.                                                                                                 *)

\* The engine hands a step's immediate tasks to the committer.
Dispatch ==
    /\ Free("task") /\ eng.pc = "published"
    /\ lo' = lo \o InOrder({t \in Registered(eng.last) : tasks[t].state = "QUEUED"})
    /\ eng' = [eng EXCEPT !.pc = "idle"]
    /\ UNCHANGED <<stateVars, tasks, hi, recordVars, budgetVars, holders, memVars, lock, bld, rdr, com, schedVars>>

\* Deferred tasks are written soon: those in no queue or the low one go to the high one, claimed ones are left alone.
Raised(T) == {t \in Registered(T) : tasks[t].state \in {"PENDING", "QUEUED"} /\ t \notin Range(hi)}
Raise(T) ==
    /\ tasks' = InState(T, "QUEUED")
    /\ hi' = hi \o InOrder(T)
    /\ lo' = Drop(lo, T)
Escalate ==
    /\ Free("task") /\ eng.up # {} /\ eng.pc # "published"
    /\ Raise(Raised(eng.up))
    /\ eng' = [eng EXCEPT !.up = {}]
    /\ UNCHANGED <<stateVars, recordVars, budgetVars, holders, memVars, lock, bld, rdr, com, schedVars>>

-----------------------------------------------------------------------------
(* Waits. Between the two actions of a wait its thread holds no lock. Who waits for tasks that are gone does not *)
(* wait; but when a failure was drained, one of them may have been lost, and the wait ends with an error. It ends *)
(* with one, too, when its bound runs out: a save is then tried again, a read raises.                            *)

EngineWaits(T, pc) ==
    /\ Registered(T) # {} \/ (failed /\ T # {})
    /\ eng' = [eng EXCEPT !.pc = pc, !.wait = Registered(T)]
    /\ UNCHANGED rdr

JoinBegin(t) ==
    /\ Free("task")
    /\ \/ /\ t = "engine" /\ (eng.pc = "forward" \/ (eng.pc = "joined" /\ CanAbort))
          /\ EngineWaits(eng.last, "joining")
       \/ t = "engine" /\ eng.pc = "flush" /\ eng.up = {} /\ EngineWaits(eng.wait, "flushing")
       \/ /\ \E r \in Readers \cap {t} :
                /\ rdr[r].pc = "join" /\ (Registered(rdr[r].joins) # {} \/ failed)
                /\ rdr' = [rdr EXCEPT ![r].pc = "joining", ![r].wait = Registered(rdr[r].joins)]
          /\ UNCHANGED eng
    /\ UNCHANGED <<stateVars, taskVars, holders, memVars, lock, bld, com, schedVars>>

SomeLost(T) == \E x \in T : IF x \in DOMAIN tasks THEN tasks[x].state = "FAILED" ELSE failed
Awaited == IF eng.pc = "joining" THEN eng.last ELSE eng.wait

JoinEnd(t) ==
    /\ Free("task")
    /\ \/ /\ t = "engine" /\ eng.pc \in {"joining", "flushing"} /\ eng.wait \subseteq woken
          /\ eng' = [eng EXCEPT !.wait = {}, !.pc = IF SomeLost(Awaited) THEN "idle"
                                                   ELSE IF @ = "joining" THEN "joined" ELSE "flushed"]
          /\ UNCHANGED rdr
       \/ /\ t = "engine" /\ eng.pc \in {"joining", "flushing"} /\ CanAbort
          /\ eng' = [eng EXCEPT !.wait = {}, !.pc = Back]
          /\ UNCHANGED rdr
       \/ /\ \E r \in Readers \cap {t} :
                /\ rdr[r].pc = "joining"
                /\ \/ /\ rdr[r].wait \subseteq woken
                      /\ rdr' = [rdr EXCEPT ![r].pc = IF SomeLost(rdr[r].joins) THEN "error" ELSE "gather"]
                   \/ CanAbort /\ rdr' = [rdr EXCEPT ![r].pc = "error"]
          /\ UNCHANGED eng
    /\ UNCHANGED <<stateVars, taskVars, holders, memVars, lock, bld, com, schedVars>>

-----------------------------------------------------------------------------
(* The byte budget.                                                                                        *)

\* What the clones of a step's deferred rows take: a row each here, in a trace their bytes.
Cost(plan) == Cardinality(Late(plan))

\* The clones are charged before they are made, if they fit.
Reserve ==
    /\ Free("task") /\ CaughtUp /\ Late(begun.plan) # {}
    /\ LET size == Cost(begun.plan)
       IN  IF charged + size <= Budget
           THEN /\ charged' = charged + size
                /\ eng' = [eng EXCEPT !.pc = "reserved", !.reserved = size]
           ELSE /\ UNCHANGED charged
                /\ eng' = [eng EXCEPT !.pc = "over budget"]
    /\ UNCHANGED <<stateVars, tasks, queueVars, recordVars, tickets, holders, memVars, lock, bld, rdr, com, schedVars>>

\* The charge of a step that was not published is given back.
Unreserve ==
    /\ Free("task") /\ eng.pc = "aborted"
    /\ charged' = charged - eng.reserved
    /\ eng' = [eng EXCEPT !.pc = Back, !.reserved = 0]
    /\ UNCHANGED <<stateVars, tasks, queueVars, recordVars, tickets, holders, memVars, lock, bld, rdr, com, schedVars>>

\* Tasks leave their tickets; the last one out gives the bytes back.
ReleaseTickets(T) ==
    LET left(x) == [x EXCEPT !.holders = @ \ T]
        over == {x \in tickets : x.holders # {} /\ x.holders \subseteq T}
    IN  /\ tickets' = {left(x) : x \in tickets \ over}
        /\ charged' = charged - SizeOf(over)

-----------------------------------------------------------------------------
(* The committer.                                                                                          *)

At(t, pc) == com[t].pc = pc
To(t, pc) == com' = [com EXCEPT ![t].pc = pc]

\* Pops what is queued highest, an escalation or one step's tasks, and claims its copy stage in one section.
ClaimCopy ==
    /\ Free("task") /\ At("committer", "idle") /\ hi \o lo # <<>>
    /\ LET popped == IF hi # <<>> THEN Range(hi) ELSE {t \in Range(lo) : tasks[t].step = tasks[Head(lo)].step}
           claimed == {t \in popped : tasks[t].state = "QUEUED"}
       IN  /\ tasks' = InState(claimed, "COPYING")
           /\ hi' = Drop(hi, popped) /\ lo' = Drop(lo, popped)
           /\ com' = [com EXCEPT !["committer"] = [@ EXCEPT !.pc = "copying", !.tids = claimed]]
    /\ UNCHANGED <<stateVars, recordVars, budgetVars, holders, memVars, lock, eng, bld, rdr, schedVars>>

\* A shutdown has not waited for the committer's copies any longer, and failed its tasks. The committer does nothing
\* more with them.
Overtook == At("committer", "copying") /\ \E t \in com["committer"].tids : t \notin Unfinished

\* Some copy that the committer waits for has not landed, and may never.
Stalls == /\ CanStall /\ At("committer", "copying") /\ ~Overtook
          /\ \E t \in com["committer"].tids : IF tasks[t].late THEN TRUE ELSE ~Landed(tasks[t].page)

\* The rows are on the host: the pages have landed, the clones were copied and are let go.
HostReady ==
    /\ Free("task") /\ At("committer", "copying") /\ ~Overtook
    /\ \A t \in com["committer"].tids : IF tasks[t].late THEN TRUE ELSE Landed(tasks[t].page)
    /\ tasks' = InState(com["committer"].tids, "HOST_READY")
    /\ ReleaseTickets(com["committer"].tids)
    /\ To("committer", "ready")
    /\ UNCHANGED <<stateVars, queueVars, recordVars, holders, memVars, lock, eng, bld, rdr, schedVars>>

\* Which rows are written: those that no later claim took over.
BeginPoolWrite ==
    /\ Free("task") /\ At("committer", "ready")
    /\ com' = [com EXCEPT !["committer"] = [@ EXCEPT !.pc = "writing",
                !.todo = UNION {{<<t, c>> : c \in tasks[t].rows \ tasks[t].lost} : t \in com["committer"].tids}]]
    /\ UNCHANGED <<stateVars, taskVars, holders, memVars, lock, eng, bld, rdr, schedVars>>

\* One row of a task, where the task has it.
RowOf(t, c) == IF tasks[t].late THEN tasks[t].bytes[c] ELSE page[tasks[t].page][c]

\* A row reaches the pool. (Data: no lock.)
PoolRowWritten ==
    /\ \E x \in com["committer"].todo :
        /\ pool' = [pool EXCEPT ![x[2]] = RowOf(x[1], x[2])]
        /\ com' = [com EXCEPT !["committer"].todo = @ \ {x}]
    /\ UNCHANGED <<stateVars, taskVars, holders, buffers, page, onWay, lock, eng, bld, rdr, schedVars>>

\* The rows are in the pool and the pages are left: the completion records are published, nobody is woken yet.
Complete ==
    /\ Free("task") /\ At("committer", "writing") /\ com["committer"].todo = {}
    /\ ~HoldsAny(com["committer"].tids)
    /\ tasks' = InState(com["committer"].tids, "WRITTEN")
    /\ completed' = completed \o InOrder(com["committer"].tids)
    /\ To("committer", "recorded")
    /\ UNCHANGED <<stateVars, queueVars, failures, woken, budgetVars, holders, memVars, lock, eng, bld, rdr, schedVars>>

\* Tasks are lost: the committer's, when their write fails or their copy does not land in time; or at the end those that
\* nobody will write, the ones that the committer is stuck with among them.
Fail(t) ==
    /\ Free("task")
    /\ LET T == IF t = "committer" THEN com[t].tids ELSE Unfinished
       IN  /\ IF t = "committer" THEN (CanFail /\ com[t].pc \in {"copying", "ready", "writing"} /\ ~Overtook) \/ Stalls
              ELSE At(t, "closing") /\ ((At("committer", "idle") /\ hi \o lo = <<>>) \/ Stalls) /\ T # {}
           /\ tasks' = InState(T, "FAILED")
           /\ hi' = Drop(hi, T) /\ lo' = Drop(lo, T)
           /\ ReleaseTickets(T)
           /\ com' = [com EXCEPT ![t] = [@ EXCEPT !.pc = "failed", !.tids = T, !.todo = {}]]
    /\ UNCHANGED <<stateVars, recordVars, holders, memVars, lock, eng, bld, rdr, schedVars>>

\* The failure records are published after the pages were left; nobody is woken yet.
RecordFailure(t) ==
    /\ Free("task") /\ At(t, "failed") /\ ~HoldsAny(com[t].tids)
    /\ failures' = failures \o InOrder(com[t].tids)
    /\ To(t, "recorded")
    /\ UNCHANGED <<stateVars, tasks, queueVars, completed, woken, budgetVars, holders, memVars, lock, eng, bld,
                   rdr, schedVars>>

\* Whoever waits for the tasks is woken.
Wake(t) ==
    /\ Free("task") /\ At(t, "recorded")
    /\ woken' = woken \cup com[t].tids
    /\ com' = [com EXCEPT ![t] = [@ EXCEPT !.pc = IF t = "closer" THEN "closing" ELSE "idle", !.tids = {}]]
    /\ UNCHANGED <<stateVars, tasks, queueVars, completed, failures, budgetVars, holders, memVars, lock, eng,
                   bld, rdr, schedVars>>
=============================================================================
