--------------------------- MODULE SlotOwnership ----------------------------
(* Steps on their way through the cache, and who owns the slots. Lock: state.                              *)
EXTENDS Reads

BuilderFree == bld.pc = "idle" \/ /\ bld.pc = "merging"
                                  /\ ~\E h \in Pending : reads[h].step = bld.step
                                  /\ "builder" \in Readers => rdr["builder"].pc = "idle"
ToEnd == /\ com["closer"].pc = "closing" /\ At("committer", "idle") /\ Unfinished = {}
         /\ "prefetch" \in Readers => rdr["prefetch"].pc = "idle"
Release == lock' = [lock EXCEPT !["state"] = Nobody]

-----------------------------------------------------------------------------
(* Drain: the first part of the critical section of most actions below.                                    *)

\* Where a thread drains; "flushed" and "forward" leave the state lock at once, the others go on under it.
EngineDrains == /\ eng.up = {}
                /\ \/ eng.pc = "flushed" \/ (eng.pc = "flush" /\ Registered(eng.wait) = {})
                   \/ eng.pc = "forward" /\ failures # <<>>
                   \/ eng.pc = "frozen" /\ ~closed
                   \/ eng.pc = "idle" /\ (agenda # <<>> \/ CanReset) /\ ~closed
                   \/ eng.pc = "begun" /\ agenda # <<>> /\ CanSkip /\ ~closed

\* Records are taken, and what was written becomes visible where its task still owns the cell. With a failure
\* among them the caller raises instead of going on.
Drain(t) ==
    /\ Free("state") /\ Free("task") /\ Records
    /\ \/ t = "engine" /\ EngineDrains
       \/ t = "builder" /\ BuilderFree /\ DOMAIN steps # {} /\ ~closed
       \/ t = "closer" /\ ToEnd
    /\ LET landed == {c \in Cells : writer[c] \in Range(completed)}
       IN  /\ status' = [c \in Cells |-> IF c \in landed /\ status[c] = "IN_TRANSIT" THEN "COMMITTED" ELSE status[c]]
           /\ writer' = [c \in Cells |-> IF c \in landed THEN NoTask ELSE writer[c]]
    /\ failed' = (failed \/ failures # <<>>)
    /\ tasks' = Without(tasks, Range(completed) \cup Range(failures))
    /\ completed' = <<>> /\ failures' = <<>>
    /\ LET leaves == (t # "closer" /\ failed') \/ (t = "engine" /\ eng.pc \in {"flush", "flushed", "forward"})
       IN  lock' = [lock EXCEPT !["state"] = IF leaves THEN Nobody ELSE t]
    /\ eng' = IF t # "engine" \/ eng.pc = "frozen" THEN eng
              ELSE IF failed' THEN [eng EXCEPT !.pc = "stopped"]
              ELSE IF eng.pc \in {"flush", "flushed"} THEN [eng EXCEPT !.pc = "joined"] ELSE eng
    /\ UNCHANGED <<tenant, version, ident, reqVars, stepVars, reads, closed, epoch, queueVars, woken, budgetVars,
                   holders, memVars, bld, rdr, com, schedVars>>

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
    /\ agenda # <<>>
    /\ LET plan == Head(agenda)
           sealed == {openTask[r] : r \in plan.ended} \ {NoTask}
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
    /\ Free("state") /\ eng.pc = "over budget"
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

\* Make the step part of the cache, all at once: preserve, claim its slots, register its tasks, bind them to the
\* page, plan again the hits on its own rows and on keys seen first, store it for the builder.
Publish ==
    /\ eng.pc = "frozen" /\ MayEnter("engine") /\ Free("task") /\ Free("page") /\ ~closed /\ ~failed
    /\ CanLag \/ Landed(eng.page)
    /\ LET plan == begun.plan
           claimed == PlanSlots(plan)
           batch == Range(plan.order)
           nowKeys == plan.keys \cap Immediate
           lateKeys == plan.keys \cap Deferred
           \* the tasks, numbered: immediate ones in the batch's order, then deferred ones that are opened
           nows == IF nowKeys = {} THEN 0 ELSE Len(plan.order)
           opens(i) == lateKeys # {} /\ ~CanTake(plan, plan.order[i])
           opened(n) == {i \in 1..n : opens(i)}
           nowTask(r) == tids + PlaceOf(plan, r)
           lateTask(r) == IF CanTake(plan, r) THEN openTask[r]
                          ELSE tids + nows + Cardinality(opened(PlaceOf(plan, r)))
           taker(c) == IF c[2] \in Immediate THEN nowTask(RequestAt(plan, c[1])) ELSE lateTask(RequestAt(plan, c[1]))
           \* the cells that are claimed, and those that only lose an earlier tenant's row
           cells == PlanCells(plan)
           owner(s) == Generation(plan, RequestAt(plan, s))
           bereft == {c \in Cells \ cells : c[1] \in claimed /\ tenant[c[1]] # owner(c[1])}
           robbed(t) == {c \in bereft : writer[c] = t} \cup {c \in cells : writer[c] = t /\ taker(c) # t}
           takers == IF lateKeys = {} THEN {} ELSE {lateTask(r) : r \in batch}
           nowNew == IF nowKeys = {} THEN {} ELSE {nowTask(r) : r \in batch}
           lateNew == takers \ DOMAIN tasks
           nowOf(t) == CHOOSE r \in batch : nowTask(r) = t
           lateOf(t) == CHOOSE r \in batch : lateTask(r) = t
           \* a task that goes on has this step's rows in place of those that it had there
           grown(t) == [tasks[t] EXCEPT !.rows = @ \cup (SlotsOf(plan, lateOf(t)) \X lateKeys),
                            !.bytes = [c \in Cells |-> IF c[1] \in SlotsOf(plan, lateOf(t)) /\ eng.clone[c] # Garbage
                                                      THEN eng.clone[c] ELSE @[c]],
                            !.clones = @ \cup {eng.step}]
           hits == {<<begun.n, r, k>> : r \in Hits(plan), k \in known \cup plan.keys}
           again(h) == h \notin DOMAIN reads \/ h[2] \in Overtaken(plan)
           tryOf(h) == IF h \in DOMAIN reads THEN reads[h].try + 1 ELSE 1
           asked(h, want) == [i \in 1..Len(want) |-> IF plan.hits[h[2]][i] \in claimed
                                                     THEN ident'[<<plan.hits[h[2]][i], h[3]>>] ELSE want[i]]
       IN  /\ tenant' = [s \in Slots |-> IF s \in claimed THEN owner(s) ELSE tenant[s]]
           /\ version' = [c \in Cells |-> IF c \in cells \cup bereft THEN version[c] + 1 ELSE version[c]]
           /\ status' = [c \in Cells |-> IF c \in cells THEN "IN_TRANSIT"
                                         ELSE IF c \in bereft THEN "ABSENT" ELSE status[c]]
           /\ writer' = [c \in Cells |-> IF c \in cells THEN taker(c) ELSE IF c \in bereft THEN NoTask ELSE writer[c]]
           /\ ident' = [c \in Cells |-> IF c \in cells THEN Identity(plan, c)
                                        ELSE IF c \in bereft THEN Absent ELSE ident[c]]
           /\ liveGen' = [r \in Requests |-> IF r \in batch THEN Generation(plan, r) ELSE liveGen[r]]
           /\ gens' = gens + Cardinality(NewOnes(plan, Len(plan.order)))
           /\ known' = known \cup plan.keys
           /\ tids' = tids + nows + Cardinality(opened(Len(plan.order)))
           /\ openTask' = [r \in Requests |-> IF r \in batch /\ lateKeys # {} THEN lateTask(r) ELSE openTask[r]]
           /\ tasks' = [t \in DOMAIN tasks \cup nowNew \cup lateNew |->
                CASE t \in nowNew -> NewTask(plan, nowOf(t), nowKeys, FALSE, "QUEUED", Blank)
                  [] t \in lateNew -> NewTask(plan, lateOf(t), lateKeys, TRUE, "PENDING",
                        [c \in Cells |-> IF c[1] \in SlotsOf(plan, lateOf(t)) THEN eng.clone[c] ELSE Garbage])
                  [] OTHER -> [(IF t \in takers THEN grown(t) ELSE tasks[t]) EXCEPT !.lost = @ \cup robbed(t)]]
           /\ tickets' = IF takers = {} THEN tickets
                         ELSE tickets \cup {[step |-> eng.step, size |-> eng.reserved, holders |-> takers]}
           /\ holders' = [holders EXCEPT ![eng.page] = @ \cup TaskHolds(nowNew)]
           /\ reads' = [h \in DOMAIN reads \cup hits |->
                LET read == IF h \in hits /\ again(h)
                            THEN PlanOf(h, plan.hits[h[2]], tryOf(h), eng.step,
                                        version', status', writer', tasks', ident')
                            ELSE Preserve(h, claimed)
                IN  IF h \in hits THEN [read EXCEPT !.step = eng.step, !.want = asked(h, @)] ELSE read]
           /\ steps' = (eng.step :> eng.page) @@ steps
           /\ saved' = saved \cup {eng.step} /\ given' = (eng.step :> Output(plan)) @@ given
           /\ begun' = NoStep
           /\ eng' = [eng EXCEPT !.pc = IF nowNew = {} THEN "idle" ELSE "published", !.last = nowNew,
                        !.up = {openTask[r] : r \in {plan.order[i] : i \in opened(Len(plan.order))}} \ {NoTask},
                        !.page = NoPage, !.reserved = 0, !.clone = Blank]
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
    /\ version' = [c \in Cells |-> version[c] + 1]
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
