----------------------------- MODULE WriteTasks -----------------------------
(* Write tasks under the task lock: the queues, the budget, the committer, failure. Waiting for a task is a *)
(* begin and an end; publishing a record and waking who waits for it are two actions.                       *)
EXTENDS CacheState

(* ------------------------------ the engine's side ------------------------ *)
(* Deferred tasks go to the high queue, also from the low one; those that were claimed are left alone. *)
Escalate ==
    /\ pc["engine"] \in {"raise", "flushRaise"} /\ Free("task")
    /\ LET up == {t \in eng.raise \cap DOMAIN tasks : tasks[t].state \in {"PENDING", "QUEUED"} /\ t \notin Range(hi)}
       IN  /\ tasks' = SetState(up, "QUEUED")
           /\ hi' = hi \o AsSeq(up) /\ lo' = Is(lo, DOMAIN tasks \ up)
    /\ Go("engine", IF At("engine", "raise") THEN "idle" ELSE "flush")
    /\ eng' = [eng EXCEPT !.raise = IF At("engine", "raise") THEN {} ELSE @]
    /\ UNCHANGED <<lockHolder, stateVars, recordVars, budgetVars, holders, dataVars, waits, taken, fetch, job>>

(* A task whose record was drained is not known any more and not waited for. *)
JoinFrom(t, from, to, tids) ==
    /\ At(t, from) /\ Go(t, to)
    /\ LET known == tids \cap DOMAIN tasks
           ended == {x \in known : tasks[x].finished}
       IN  waits' = [waits EXCEPT ![t] = [tids |-> known \ ended,
                                          failed |-> \E x \in ended : tasks[x].state = "FAILED"]]
    /\ UNCHANGED <<lockHolder, stateVars, taskVars, holders, dataVars, eng, taken, fetch, job>>

JoinBegin ==
    /\ Free("task")
    /\ \/ begun # None /\ liveBuf.step = stepNo /\ ~closed /\ JoinFrom("engine", "idle", "joinLast", lastStep)
       \/ JoinFrom("engine", "flush", "joinFlush", eng.raise)
       \/ \E t \in Readers : fetch[t] # None /\ JoinFrom(t, "join", "joinRead", fetch[t].joins)

(* Of tasks that were drained before, `lost` tells whether one may have failed. *)
JoinTo(t, from, to, raised) ==
    /\ At(t, from) /\ waits[t].tids = {}
    /\ Go(t, IF waits[t].failed \/ lost THEN raised ELSE to)
    /\ waits' = [waits EXCEPT ![t] = NoWait]
    /\ UNCHANGED <<lockHolder, stateVars, taskVars, holders, dataVars, eng, taken, fetch, job>>

JoinEnd ==
    /\ Free("task")
    /\ \/ JoinTo("engine", "joinLast", IF begun.batch.keys \cap DeferredKeys = {} THEN "wantPage" ELSE "reserve", "raised")
       \/ JoinTo("engine", "joinFlush", "flushed", "raised")
       \/ \E t \in Readers : JoinTo(t, "joinRead", "gather", "drop")

Bytes(b) == Len(b.rows) * Cardinality(b.keys \cap DeferredKeys)

Reserve ==
    /\ At("engine", "reserve") /\ Free("task")
    /\ LET n == Bytes(begun.batch) IN
        IF charged + n <= Budget
        THEN charged' = charged + n /\ eng' = [eng EXCEPT !.bytes = n] /\ Go("engine", "wantPage")
        ELSE UNCHANGED <<charged, eng>> /\ Go("engine", "seal")
    /\ UNCHANGED <<lockHolder, stateVars, tasks, queueVars, recordVars, tickets, holders, dataVars,
                   waits, taken, fetch, job>>

Dispatch ==
    /\ At("engine", "dispatch") /\ Free("task")
    /\ lo' = lo \o AsSeq(lastStep)
    /\ Go("engine", IF eng.raise # {} THEN "raise" ELSE "idle")
    /\ UNCHANGED <<lockHolder, stateVars, tasks, hi, recordVars, budgetVars, holders, dataVars, localVars>>

(* A save that could not publish gives its charge back. *)
Unreserve ==
    /\ At("engine", "gaveUp") /\ Free("task")
    /\ charged' = charged - eng.bytes /\ eng' = NoEng /\ clone' = <<>> /\ Go("engine", "raised")
    /\ UNCHANGED <<lockHolder, stateVars, tasks, queueVars, recordVars, tickets, holders, pool, page, liveBuf,
                   waits, taken, fetch, job>>

(* ------------------------------ the committer ---------------------------- *)
ClaimCopy ==
    /\ At("committer", "idle") /\ Free("task") /\ hi \o lo # <<>>
    /\ LET popped == IF hi # <<>> THEN Range(hi)
                     ELSE {t \in Range(lo) : tasks[t].first = tasks[Head(lo)].first}
       IN  /\ tasks' = SetState(popped, "COPYING")
           /\ job' = [tids |-> popped, content |-> <<>>]
           /\ hi' = Is(hi, DOMAIN tasks \ popped) /\ lo' = Is(lo, DOMAIN tasks \ popped)
    /\ Go("committer", "copying")
    /\ UNCHANGED <<lockHolder, stateVars, recordVars, budgetVars, holders, dataVars, waits, eng, taken, fetch>>

HostReady ==
    /\ At("committer", "copying") /\ Free("task")
    /\ \A t \in job.tids : tasks[t].page # None => page[tasks[t].page].landed
    /\ tasks' = SetState(job.tids, "HOST_READY") /\ ReleaseTickets(job.tids)
    /\ Go("committer", "hostReady")
    /\ UNCHANGED <<lockHolder, stateVars, queueVars, recordVars, holders, dataVars, localVars>>

(* What a task lands: its last row of each place, unless a later claim took the place over. *)
Lands(t) ==
    IF tasks[t].abandoned THEN {}
    ELSE {[key |-> w.key, slot |-> w.slot, version |-> w.version, tid |-> t, id |-> w.id] : w \in
            {v \in tasks[t].rows : /\ <<v.key, v.slot>> \notin tasks[t].lost
                                   /\ \A x \in tasks[t].rows : x.key = v.key /\ x.slot = v.slot => x.version <= v.version}}

BeginPoolWrite ==
    /\ At("committer", "hostReady") /\ Free("task")
    /\ tasks' = [t \in DOMAIN tasks |-> IF t \in job.tids THEN [tasks[t] EXCEPT !.landing = Lands(t)] ELSE tasks[t]]
    /\ LET torn == {<<w.key, w.slot>> : w \in UNION {Lands(t) : t \in job.tids}}
       IN  pool' = [k \in Keys |-> [s \in Slots |-> IF <<k, s>> \in torn THEN Torn ELSE pool[k][s]]]
    /\ Go("committer", "writing")
    /\ UNCHANGED <<lockHolder, stateVars, queueVars, recordVars, budgetVars, holders, page, liveBuf, clone, localVars>>

Landing(T) == UNION {tasks[t].landing : t \in T}

(* Data: the rows leave their pages and clones for the pool. No lock is held. *)
Scatter ==
    /\ At("committer", "writing") /\ Go("committer", "scattered")
    /\ LET rows == Landing(job.tids)
           row(x) == CHOOSE w \in rows : w.key = x[1] /\ w.slot = x[2]
           bytes(x) == IF tasks[row(x).tid].deferred THEN row(x).id ELSE page[tasks[row(x).tid].page].content[x]
       IN  job' = [job EXCEPT !.content = [x \in {<<w.key, w.slot>> : w \in rows} |-> bytes(x)]]
    /\ UNCHANGED <<lockHolder, stateVars, taskVars, holders, dataVars, waits, eng, taken, fetch>>

Recorded(T, s) == [t \in DOMAIN tasks |-> IF t \in T THEN [tasks[t] EXCEPT !.state = s, !.recorded = TRUE] ELSE tasks[t]]

Complete ==
    /\ At("committer", "scattered") /\ Free("task") /\ Holding(job.tids) = {}
    /\ tasks' = Recorded(job.tids, "WRITTEN")
    /\ completed' = completed \o AsSeq(job.tids)
    /\ pool' = [k \in Keys |-> [s \in Slots |-> IF <<k, s>> \in DOMAIN job.content THEN job.content[<<k, s>>]
                                                ELSE pool[k][s]]]
    /\ Go("committer", "recorded")
    /\ UNCHANGED <<lockHolder, stateVars, queueVars, failed, budgetVars, holders, page, liveBuf, clone, localVars>>

(* ------------------------------- failure --------------------------------- *)
Mine(t) == IF t = "engine" THEN eng.raise ELSE job.tids

(* A copy or a write of the committer fails; at the end the engine fails what nobody will write. *)
Fail ==
    /\ Free("task")
    /\ \/ /\ pc["committer"] \in {"copying", "hostReady", "writing", "scattered"}
          /\ tasks' = SetState(job.tids, "FAILED") /\ ReleaseTickets(job.tids)
          /\ Go("committer", "failing") /\ UNCHANGED eng
       \/ /\ At("engine", "stopping") /\ At("committer", "idle") /\ hi \o lo = <<>> /\ Unfinished # {}
          /\ tasks' = SetState(Unfinished, "FAILED") /\ ReleaseTickets(Unfinished)
          /\ eng' = [eng EXCEPT !.raise = Unfinished] /\ Go("engine", "failing")
    /\ UNCHANGED <<lockHolder, stateVars, queueVars, recordVars, holders, dataVars, waits, taken, fetch, job>>

RecordFailure ==
    /\ Free("task")
    /\ \E t \in {"committer", "engine"} :
        /\ At(t, "failing") /\ Holding(Mine(t)) = {}
        /\ tasks' = Recorded(Mine(t), "FAILED") /\ failed' = failed \o AsSeq(Mine(t))
        /\ Go(t, "failureRecorded")
    /\ UNCHANGED <<lockHolder, stateVars, queueVars, completed, budgetVars, holders, dataVars, localVars>>

(* Who waits for the tasks is woken, also when their record was drained meanwhile. *)
Wake ==
    /\ Free("task")
    /\ \E t \in {"committer", "engine"} :
        /\ pc[t] \in {"recorded", "failureRecorded"}
        /\ tasks' = [x \in DOMAIN tasks |-> IF x \in Mine(t) THEN [tasks[x] EXCEPT !.finished = TRUE] ELSE tasks[x]]
        /\ waits' = [x \in Threads |-> [tids |-> waits[x].tids \ Mine(t),
                failed |-> waits[x].failed \/ (At(t, "failureRecorded") /\ waits[x].tids \cap Mine(t) # {})]]
        /\ Go(t, IF t = "engine" THEN "stopping" ELSE "idle")
        /\ IF t = "engine" THEN eng' = [eng EXCEPT !.raise = {}] /\ UNCHANGED job
           ELSE job' = [tids |-> {}, content |-> <<>>] /\ UNCHANGED eng
    /\ UNCHANGED <<lockHolder, stateVars, queueVars, recordVars, budgetVars, holders, dataVars, taken, fetch>>
=============================================================================
