---------------------------- MODULE StagingPages ----------------------------
(* Staging pages and the memory around them: live buffers, pages, copies on their way. Lock: page.         *)
EXTENDS Vocabulary

\* Where the engine goes on after a save that did not publish: it is tried again, unless the cache has ended.
Back == IF failed \/ closed THEN "stopped" ELSE "forward"

\* The next forward writes its rows over those of the last one. (Environment.)
OverwriteLive ==
    /\ eng.pc = "begun" /\ eng.up = {} /\ lock.state # "engine"
    /\ buffers' = Output(begun.plan)
    /\ eng' = [eng EXCEPT !.pc = "forward"]
    /\ UNCHANGED <<stateVars, taskVars, holders, page, onWay, pool, lock, bld, rdr, com, schedVars>>

ClaimPageBegin ==
    /\ Free("page")
    /\ eng.pc = "reserved" \/ (CaughtUp /\ Late(begun.plan) = {})
    /\ stepIds' = stepIds + 1
    /\ eng' = [eng EXCEPT !.pc = "page wait", !.step = stepIds + 1]
    /\ UNCHANGED <<stateVars, taskVars, holders, memVars, lock, bld, rdr, com, agenda, begins>>

\* The wait ends with a page that nobody holds, or raises: shut down, or out of time.
ClaimPageEnd ==
    /\ Free("page") /\ eng.pc = "page wait"
    /\ \/ /\ ~closed
          /\ \E p \in Pages :
                /\ holders[p] = {}
                /\ holders' = [holders EXCEPT ![p] = {<<"step", eng.step>>}]
                /\ eng' = [eng EXCEPT !.pc = "claimed", !.page = p]
       \/ /\ closed \/ CanAbort
          /\ eng' = [eng EXCEPT !.pc = IF eng.reserved > 0 THEN "aborted" ELSE Back]
          /\ UNCHANGED holders
    /\ UNCHANGED <<stateVars, taskVars, memVars, lock, bld, rdr, com, schedVars>>

\* What lies in the live buffers is copied where the next forward does not write; the copy to the page is queued.
Freeze ==
    /\ eng.pc = "claimed"
    /\ LET of(C) == [c \in Cells |-> IF c \in C THEN buffers[c] ELSE Garbage]
       IN  /\ onWay' = IF Now(begun.plan) = {} THEN onWay
                       ELSE [onWay EXCEPT ![eng.page] = Append(@, of(Now(begun.plan)))]
           /\ eng' = [eng EXCEPT !.pc = "frozen", !.clone = of(Late(begun.plan))]
    /\ UNCHANGED <<stateVars, taskVars, holders, buffers, page, pool, lock, bld, rdr, com, schedVars>>

\* A copy lands on its page, in the order in which the copies were queued. (Environment.)
CopyLands(p) ==
    /\ \E rows \in Heads(onWay[p]) : page' = [page EXCEPT ![p] = rows]
    /\ onWay' = [onWay EXCEPT ![p] = Tail(@)]
    /\ UNCHANGED <<stateVars, taskVars, holders, buffers, pool, lock, eng, bld, rdr, com, schedVars>>

TaskHolds(T) == {<<"task", t>> : t \in T}
HoldsAny(T) == \E p \in Pages : holders[p] \cap TaskHolds(T) # {}
Leave(p, who) == holders' = [holders EXCEPT ![p] = @ \ who]

\* A save that does not publish gives its page up, once the copy that it queued has landed. Where that does not come,
\* the page stays with the step for good, as the copy still uses it. (The wait raises: no event.)
EngineLeaves ==
    /\ lock.state # "engine" /\ (CanAbort \/ closed \/ failed)
    /\ \E p \in Pages \cap {eng.page} :
        \/ Landed(p) /\ Leave(p, {<<"step", eng.step>>})
        \/ CanStall /\ ~Landed(p) /\ UNCHANGED holders
    /\ eng' = [eng EXCEPT !.pc = IF eng.reserved > 0 THEN "aborted" ELSE Back, !.page = NoPage, !.clone = Blank]
    /\ UNCHANGED <<bld, com>>

\* The builder has copied its step's rows off the page, discards the step, or has waited for the rows in vain: then it
\* leaves the page to the tasks, lets go of its reads and raises.
BuilderLeaves ==
    /\ \E pc \in CASE bld.pc = "leaving" -> {"idle"}
                  [] bld.pc = "copying" -> {x \in {"merging"} : Landed(bld.page)} \cup {x \in {"raising"} : CanStall}
                  [] OTHER -> {} :
        bld' = [bld EXCEPT !.pc = pc]
    /\ Leave(bld.page, {<<"step", bld.step>>})
    /\ UNCHANGED <<eng, com>>

\* Tasks leave their page when their rows are in the pool, or lost.
TasksLeave(t) ==
    /\ com[t].pc = "failed" \/ (com[t].pc = "writing" /\ com[t].todo = {})
    /\ \E p \in Pages :
        /\ holders[p] \cap TaskHolds(com[t].tids) # {}
        /\ Leave(p, TaskHolds(com[t].tids))
    /\ UNCHANGED <<eng, bld, com>>

\* At the end the steps that nobody consumed leave their pages.
StepsLeave ==
    /\ \E x \in com["closer"].todo :
        /\ Leave(x[1], {x[2]})
        /\ com' = [com EXCEPT !["closer"].todo = @ \ {x}]
    /\ UNCHANGED <<eng, bld>>

ReleasePage(t) ==
    /\ Free("page")
    /\ \/ t = "engine" /\ EngineLeaves
       \/ t = "builder" /\ BuilderLeaves
       \/ \E w \in Writers \cap {t} : TasksLeave(w)
       \/ t = "closer" /\ StepsLeave
    /\ UNCHANGED <<stateVars, taskVars, memVars, lock, rdr, schedVars>>
=============================================================================
