---------------------------- MODULE SlotsAndReads ----------------------------
(* Steps, slots and reads under the state lock. A thread that drains first keeps the lock for the action that*)
(* it came for.                                                                                             *)
EXTENDS StagingPages

(* --------------------------- drain and begin ---------------------------- *)
(* Finished writes become visible. The state lock is kept for the action that the thread came for; when a   *)
(* write has failed that action raises instead.                                                             *)
Commit ==
    LET done == UNION {tasks[t].landing : t \in Range(completed)}
        mine(k, s) == \E w \in done : w.key = k /\ w.slot = s /\ w.tid = writer[k][s]
    IN  /\ status' = [k \in Keys |-> [s \in Slots |-> IF mine(k, s) THEN "COMMITTED" ELSE status[k][s]]]
        /\ writer' = [k \in Keys |-> [s \in Slots |-> IF mine(k, s) THEN None ELSE writer[k][s]]]
        /\ tasks' = Without(tasks, Range(completed) \cup Range(failed))
        /\ lost' = (lost \/ failed # <<>>)
        /\ completed' = <<>> /\ failed' = <<>>

DrainTo(t, from, to, raised) ==
    /\ At(t, from)
    /\ Commit
    /\ IF lost' /\ raised # None THEN Go(t, raised) /\ UNCHANGED lockHolder
       ELSE /\ Go(t, to)
            /\ lockHolder' = [lockHolder EXCEPT !["state"] = IF to = "reserve" THEN None ELSE t]
    /\ UNCHANGED <<tenant, version, tags, requestVars, stepVars, readVars, closed, epoch, queueVars, budgetVars,
                   holders, dataVars, localVars>>

Drain ==
    /\ Free("state") /\ Free("task")
    /\ \/ ~closed /\ Batches(stepNo + 1) # {} /\ DrainTo("engine", "idle", "begin", "raised")
       \/ ~closed /\ begun = None /\ DrainTo("engine", "idle", "reset", "raised")
       \/ DrainTo("engine", "flushed", "reserve", "raised")
       \/ DrainTo("engine", "frozen", "publish", "giveUp")
       \/ Unfinished = {} /\ At("committer", "idle") /\ DrainTo("engine", "stopping", "end", None)
       \/ ~closed /\ DOMAIN steps # {} /\ taken = None /\ DrainTo("builder", "idle", "take", "idle")

(* A read of `key` for `request` at the slots S, as they are after the action. *)
NewRead(request, key, S) ==
    LET src(s) == CASE status'[key][s] = "ABSENT" -> "NOTHING"
                    [] status'[key][s] = "COMMITTED" -> "POOL"
                    [] OTHER -> IF tasks'[writer'[key][s]].deferred THEN "STAGED" ELSE "POOL"
        staged == {s \in S : src(s) = "STAGED"}
        copy(s) == CHOOSE w \in tasks'[writer'[key][s]].rows :
                        w.key = key /\ w.slot = s /\ w.version = version'[key][s]
    IN  [key |-> key, version |-> [s \in S |-> version'[key][s]], source |-> [s \in S |-> src(s)],
         staged |-> [s \in staged |-> copy(s).id], aside |-> <<>>, fetching |-> FALSE, epoch |-> epoch,
         joins |-> {writer'[key][s] : s \in {x \in S \ staged : status'[key][x] = "IN_TRANSIT"}},
         want |-> [s \in S |-> IF status'[key][s] = "ABSENT" THEN None ELSE tags'[key][s]]]

ReadIds(n, hits, when) == {<<n, q, k, when>> : q \in hits, k \in Keys}
NewReads(ids, hits) == [r \in ids |-> NewRead(r[2], r[3], hits[r[2]])]

BeginStep ==
    /\ At("engine", "begin") /\ Inside("engine") /\ ~closed /\ ~lost
    /\ \E b \in Batches(stepNo + 1) :
        LET sealed == {open[r] : r \in b.ended} \ {None}
            ids == ReadIds(stepNo + 1, DOMAIN b.hits, "early")
            old == IF begun = None THEN {} ELSE begun.reads
        IN  /\ DOMAIN b.hits \cap (live \ b.ended) = {}
            /\ live' = live \ b.ended
            /\ open' = [r \in Requests |-> IF r \in b.ended THEN None ELSE open[r]]
            /\ stepNo' = stepNo + 1
            /\ begun' = [batch |-> b, reads |-> ids]
            /\ UNCHANGED <<slotVars, tasks>>
            /\ reads' = NewReads(ids, b.hits) @@ Without(reads, old)
            /\ eng' = [eng EXCEPT !.raise = sealed]
            /\ Go("engine", IF sealed = {} THEN "idle" ELSE "raise")
    /\ Leave("state")
    /\ UNCHANGED <<generation, steps, lastStep, consumed, delivery, endVars, queueVars, recordVars, budgetVars,
                   holders, dataVars, waits, taken, fetch, job>>

(* The open deferred tasks with the oldest rows take no more; where none is open, all are hurried. *)
SealOldest ==
    /\ At("engine", "seal") /\ Free("state")
    /\ LET some == Range(open) \ {None}
           oldest == {t \in some : \A x \in some : tasks[t].first <= tasks[x].first}
       IN  /\ open' = [r \in Requests |-> IF open[r] \in oldest THEN None ELSE open[r]]
           /\ eng' = [eng EXCEPT !.raise = IF oldest = {} THEN Unfinished ELSE oldest]
    /\ Go("engine", "flushRaise")
    /\ UNCHANGED <<lockHolder, slotVars, generation, live, stepVars, readVars, endVars, taskVars, holders,
                   dataVars, waits, taken, fetch, job>>

(* Committed pool rows of a pending read that are about to be claimed are copied aside. *)
Preserve(r, claimed) ==
    LET need == {s \in DOMAIN r.version \cap claimed :
                    /\ r.source[s] = "POOL" /\ s \notin DOMAIN r.aside
                    /\ version[r.key][s] = r.version[s] /\ status[r.key][s] = "COMMITTED"}
    IN  [r EXCEPT !.aside = [s \in need |-> pool[r.key][s]] @@ @]

Task(deferred, state, p, n, rows) ==
    [deferred |-> deferred, state |-> state, page |-> p, first |-> n, rows |-> rows, lost |-> {},
     abandoned |-> FALSE, landing |-> None, recorded |-> FALSE, finished |-> FALSE]

(* The step becomes part of the cache: preserve, claim its slots, register its tasks, plan again the hits   *)
(* on its own rows, store its context.                                                                      *)
Publish ==
    /\ At("engine", "publish") /\ Inside("engine") /\ Free("task") /\ ~closed /\ ~lost
    /\ holders[eng.page] = {<<"step", stepNo>>}
    /\ LET b == begun.batch
           n == stepNo
           claimed == {w.slot : w \in Range(b.rows)}
           of(s) == (CHOOSE w \in Range(b.rows) : w.slot = s).req
           who == {w.req : w \in Range(b.rows)}
           gen == [r \in Requests |-> IF r \in who \ live THEN generation[r] + 1 ELSE generation[r]]
           newTenant(s) == IF s \in claimed THEN <<of(s), gen[of(s)]>> ELSE tenant[s]
           moved == {s \in claimed : tenant[s] # newTenant(s)}
           touched(k) == IF k \in b.keys THEN claimed ELSE moved
           deferred == b.keys \cap DeferredKeys
           lostBy(t) == UNION {{<<k, s>> : s \in {x \in touched(k) : writer[k][x] = t}} : k \in Keys}
           canTake(r) == /\ open[r] # None /\ tasks[open[r]].state = "PENDING"
                         /\ ~\E w \in Range(b.rows), k \in deferred : w.req = r /\ <<k, w.slot>> \in tasks[open[r]].lost
           taker == [r \in who |-> IF canTake(r) THEN open[r] ELSE <<n, r, "deferred">>]
           soon == [r \in who |-> <<n, r, "immediate">>]
           tidOf(k, r) == IF k \in DeferredKeys THEN taker[r] ELSE soon[r]
           goneFrom(t) == {x \in lostBy(t) : ~(x[1] \in b.keys /\ tidOf(x[1], of(x[2])) = t)}
           rowsOf(r, K) == {[step |-> n, key |-> k, slot |-> w.slot, version |-> version[k][w.slot] + 1,
                             id |-> IF k \in DeferredKeys THEN clone[<<k, w.slot>>] ELSE None] :
                                k \in K, w \in {x \in Range(b.rows) : x.req = r}}
           old == [t \in DOMAIN tasks |-> [tasks[t] EXCEPT !.lost = @ \cup goneFrom(t),
                     !.rows = IF deferred # {} /\ t \in Range(taker)
                              THEN @ \cup UNION {rowsOf(r, deferred) : r \in {x \in who : taker[x] = t}} ELSE @]]
           imm == IF b.keys \cap ImmediateKeys = {} THEN {} ELSE Range(soon)
           opened == IF deferred = {} THEN {} ELSE Range(taker) \ DOMAIN tasks
           shut == IF deferred = {} THEN {}
                   ELSE {open[r] : r \in {x \in who : open[x] # None /\ ~canTake(x)}} \cap Unfinished
           over == {q \in DOMAIN b.hits : b.hits[q] \cap claimed # {}}
           spared == {r \in begun.reads : r[2] \in over}
           late == ReadIds(n, over, "late")
           all == (begun.reads \ spared) \cup late
       IN  /\ lastStep \cap Unfinished = {}
           /\ generation' = gen /\ live' = live \cup who
           /\ tenant' = [s \in Slots |-> newTenant(s)]
           /\ version' = [k \in Keys |-> [s \in Slots |-> version[k][s] + IF s \in touched(k) THEN 1 ELSE 0]]
           /\ status' = [k \in Keys |-> [s \in Slots |-> IF s \notin touched(k) THEN status[k][s]
                                                         ELSE IF k \in b.keys THEN "IN_TRANSIT" ELSE "ABSENT"]]
           /\ writer' = [k \in Keys |-> [s \in Slots |-> IF s \notin touched(k) THEN writer[k][s]
                                                         ELSE IF k \in b.keys THEN tidOf(k, of(s)) ELSE None]]
           /\ tags' = [k \in Keys |-> [s \in Slots |-> IF s \in touched(k) /\ k \in b.keys
                                                       THEN liveBuf.rows[<<k, s>>] ELSE tags[k][s]]]
           /\ tasks' = [t \in imm |-> Task(FALSE, "QUEUED", eng.page, n, rowsOf(t[2], b.keys \cap ImmediateKeys))]
                    @@ [t \in opened |-> Task(TRUE, "PENDING", None, n, rowsOf(t[2], deferred))]
                    @@ old
           /\ open' = [r \in Requests |-> IF deferred # {} /\ r \in who THEN taker[r] ELSE open[r]]
           /\ tickets' = IF deferred = {} THEN tickets
                         ELSE (n :> [bytes |-> eng.bytes, holders |-> Range(taker)]) @@ tickets
           /\ holders' = [holders EXCEPT ![eng.page] = @ \cup {<<"task", t>> : t \in imm}]
           /\ reads' = NewReads(late, b.hits)
                    @@ [r \in DOMAIN reads \ spared |-> Preserve(reads[r], claimed)]
           /\ steps' = (n :> [page |-> eng.page, reads |-> all]) @@ steps
           /\ consumed' = (n :> 0) @@ consumed
           /\ lastStep' = imm /\ begun' = None
           /\ eng' = [NoEng EXCEPT !.raise = shut]
           /\ Go("engine", IF imm # {} THEN "dispatch" ELSE IF shut # {} THEN "raise" ELSE "idle")
    /\ clone' = <<>>
    /\ Leave("state")
    /\ UNCHANGED <<stepNo, delivery, endVars, queueVars, recordVars, charged, pool, page, liveBuf,
                   waits, taken, fetch, job>>

(* ------------------------------- the builder ----------------------------- *)
Consume(n) ==
    /\ steps' = Without(steps, {n}) /\ consumed' = [consumed EXCEPT ![n] = @ + 1]
    /\ taken' = [step |-> n, page |-> steps[n].page, reads |-> steps[n].reads]
    /\ UNCHANGED <<slotVars, requestVars, stepNo, begun, lastStep, delivery, endVars, taskVars, holders, dataVars,
                   waits, eng, fetch, job>>

TakeStep ==
    /\ At("builder", "take") /\ Inside("builder") /\ ~closed /\ ~lost
    /\ \E n \in DOMAIN steps : Consume(n)
    /\ UNCHANGED reads /\ Go("builder", "copyOut") /\ Leave("state")

DiscardStep ==
    /\ At("builder", "idle") /\ taken = None /\ Free("state") /\ ~closed
    /\ \E n \in DOMAIN steps : Consume(n) /\ reads' = Without(reads, steps[n].reads)
    /\ Go("builder", "discarded") /\ UNCHANGED lockHolder

(* ------------------------- reads, by builder or prefetch ----------------- *)
BeginFetch ==
    /\ Free("state")
    /\ \E t \in Readers, r \in DOMAIN reads :
        /\ ~reads[r].fetching
        /\ \/ t = "prefetch" /\ At(t, "idle")
           \/ t = "builder" /\ At(t, "merge") /\ r \in taken.reads
        /\ reads' = [reads EXCEPT ![r].fetching = TRUE]
        /\ fetch' = [fetch EXCEPT ![t] = [read |-> r, plan |-> reads[r], joins |-> reads[r].joins, got |-> <<>>]]
        /\ Go(t, IF reads[r].joins = {} THEN "gather" ELSE "join")
    /\ UNCHANGED <<lockHolder, slotVars, requestVars, stepVars, delivery, endVars, taskVars, holders, dataVars,
                   waits, eng, taken, job>>

(* Data: the rows are copied out of the pool, or out of the clones of a task. No lock is held. *)
Gather ==
    /\ \E t \in Readers :
        /\ At(t, "gather") /\ Go(t, "gathered")
        /\ LET plan == fetch[t].plan
               row(s) == CASE plan.source[s] = "POOL" -> pool[plan.key][s]
                           [] plan.source[s] = "STAGED" -> plan.staged[s]
                           [] OTHER -> None
           IN  fetch' = [fetch EXCEPT ![t].got = [s \in DOMAIN plan.source |-> row(s)]]
    /\ UNCHANGED <<lockHolder, stateVars, taskVars, holders, dataVars, waits, eng, taken, job>>

FromPool(r) == {s \in DOMAIN r.source : r.source[s] = "POOL"}
Changed(r) == IF r.aside # <<>> /\ FromPool(r) \subseteq DOMAIN r.aside THEN DOMAIN r.aside
              ELSE {s \in FromPool(r) : version[r.key][s] # r.version[s]}
(* Whether rows that were gathered for read r may be delivered: where a place changed, there is a copy.      *)
Current(r) ==
    /\ r \in DOMAIN reads
    /\ Changed(reads[r]) \subseteq DOMAIN reads[r].aside

EndFetch ==
    /\ Free("state")
    /\ \E t \in Readers :
        /\ At(t, "gathered") /\ Current(fetch[t].read)
        /\ LET r == fetch[t].read
               aside == Changed(reads[r])
               row(s) == IF s \in aside THEN reads[r].aside[s] ELSE fetch[t].got[s]
           IN  /\ delivery' = [read |-> r, asked |-> reads[r].want, aside |-> aside,
                               got |-> [s \in DOMAIN reads[r].want |-> row(s)]]
               /\ reads' = Without(reads, {r})
        /\ Go(t, IF t = "builder" THEN "merge" ELSE "idle")
        /\ fetch' = [fetch EXCEPT ![t] = None]
    /\ UNCHANGED <<lockHolder, slotVars, requestVars, stepVars, endVars, taskVars, holders, dataVars,
                   waits, eng, taken, job>>

(* Reads that are over without being delivered: errors, and what the caller did not ask for. *)
DropRead ==
    /\ Free("state")
    /\ \E t \in Readers :
        /\ \/ At(t, "drop") \/ (t = "builder" /\ At(t, "merge"))
           \/ At(t, "gathered") /\ ~Current(fetch[t].read)
        /\ reads' = Without(reads, IF t = "builder" THEN taken.reads ELSE {fetch[t].read})
        /\ fetch' = [fetch EXCEPT ![t] = None]
        /\ taken' = IF t = "builder" THEN None ELSE taken
        /\ Go(t, "idle")
    /\ UNCHANGED <<lockHolder, slotVars, requestVars, stepVars, delivery, endVars, taskVars, holders, dataVars,
                   waits, eng, job>>

(* --------------------------- epochs and the end -------------------------- *)
Reset ==
    /\ At("engine", "reset") /\ Inside("engine") /\ ~closed /\ ~lost
    /\ tenant' = [s \in Slots |-> None]
    /\ version' = [k \in Keys |-> [s \in Slots |-> version[k][s] + 1]]
    /\ status' = [k \in Keys |-> [s \in Slots |-> "ABSENT"]] /\ writer' = NoTag
    /\ tasks' = [t \in DOMAIN tasks |-> [tasks[t] EXCEPT !.abandoned = TRUE]]
    /\ generation' = [r \in Requests |-> IF r \in live THEN generation[r] + 1 ELSE generation[r]]
    /\ open' = [r \in Requests |-> None] /\ epoch' = epoch + 1
    /\ eng' = [eng EXCEPT !.raise = Range(open) \ {None}]
    /\ Go("engine", IF Range(open) = {None} THEN "idle" ELSE "raise") /\ Leave("state")
    /\ UNCHANGED <<tags, live, stepVars, readVars, lost, closed, queueVars, recordVars, budgetVars, holders, dataVars,
                   waits, taken, fetch, job>>

ShutdownBegin ==
    /\ pc["engine"] \in {"idle", "raised"} /\ Free("state") /\ ~closed
    /\ closed' = TRUE /\ Go("engine", "stopping")
    /\ UNCHANGED <<lockHolder, slotVars, requestVars, stepVars, readVars, lost, epoch, taskVars, holders, dataVars,
                   localVars>>

ShutdownEnd ==
    /\ At("engine", "end") /\ Inside("engine") /\ closed
    /\ eng' = [eng EXCEPT !.leave = [n \in DOMAIN steps |-> steps[n].page]]
    /\ consumed' = [n \in DOMAIN consumed |-> consumed[n] + IF n \in DOMAIN steps THEN 1 ELSE 0]
    /\ steps' = <<>> /\ reads' = <<>> /\ begun' = None /\ live' = {} /\ open' = [r \in Requests |-> None]
    /\ Go("engine", IF DOMAIN steps = {} THEN "ended" ELSE "leave") /\ Leave("state")
    /\ UNCHANGED <<slotVars, generation, stepNo, lastStep, delivery, endVars, taskVars, holders, dataVars,
                   waits, taken, fetch, job>>
=============================================================================
