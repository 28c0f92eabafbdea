---------------------------- MODULE StagingPages ----------------------------
(* Staging pages under the page lock, and the device: copies are queued by Freeze and land later.           *)
EXTENDS WriteTasks

ClaimPageBegin ==
    /\ At("engine", "wantPage") /\ Free("page") /\ Go("engine", "claimPage")
    /\ UNCHANGED <<lockHolder, stateVars, taskVars, holders, dataVars, localVars>>

ClaimPageEnd ==
    /\ At("engine", "claimPage") /\ Free("page")
    /\ \E p \in Pages :
        /\ holders[p] = {}
        /\ holders' = [holders EXCEPT ![p] = {<<"step", stepNo>>}]
        /\ eng' = [eng EXCEPT !.page = p]
    /\ Go("engine", "freeze")
    /\ UNCHANGED <<lockHolder, stateVars, taskVars, dataVars, waits, taken, fetch, job>>

(* Copies of the live buffers are queued (immediate keys, onto the page) and made (deferred keys). *)
Freeze ==
    /\ At("engine", "freeze") /\ holders[eng.page] = {<<"step", stepNo>>}
    /\ LET rowsOf(K) == Only(liveBuf.rows, K \X Slots) IN
        /\ page' = [page EXCEPT ![eng.page] =
                [step |-> stepNo, given |-> rowsOf(ImmediateKeys), content |-> <<>>,
                 landed |-> begun.batch.keys \cap ImmediateKeys = {}]]
        /\ clone' = rowsOf(DeferredKeys)
    /\ Go("engine", "frozen")
    /\ UNCHANGED <<lockHolder, stateVars, taskVars, holders, pool, liveBuf, localVars>>

LeavePage(p, H) == Free("page") /\ H \subseteq holders[p] /\ holders' = [holders EXCEPT ![p] = @ \ H]

ReleasePage ==
    /\ \/ /\ At("builder", "copyOut") /\ page[taken.page].landed
          /\ LeavePage(taken.page, {<<"step", taken.step>>})
          /\ Go("builder", "merge") /\ UNCHANGED <<eng, taken>>
       \/ /\ At("builder", "discarded")
          /\ LeavePage(taken.page, {<<"step", taken.step>>})
          /\ Go("builder", "idle") /\ taken' = None /\ UNCHANGED eng
       \/ /\ At("engine", "giveUp")
          /\ LeavePage(eng.page, {<<"step", stepNo>>})
          /\ Go("engine", "gaveUp") /\ UNCHANGED <<eng, taken>>
       \/ /\ At("engine", "leave")
          /\ \E n \in DOMAIN eng.leave :
                /\ LeavePage(eng.leave[n], {<<"step", n>>})
                /\ eng' = [eng EXCEPT !.leave = Without(@, {n})]
                /\ Go("engine", IF DOMAIN eng.leave = {n} THEN "ended" ELSE "leave")
          /\ UNCHANGED taken
       \/ /\ pc["committer"] \in {"scattered", "failing"}
          /\ \E p \in Pages :
                LET mine == Holding(job.tids) \cap holders[p] IN mine # {} /\ LeavePage(p, mine)
          /\ UNCHANGED <<pc, eng, taken>>
    /\ UNCHANGED <<lockHolder, stateVars, taskVars, dataVars, waits, fetch, job>>

(* ---------------------------- the environment ---------------------------- *)
(* A device copy lands some time after it was queued, with what was given. *)
CopyLands ==
    /\ \E p \in Pages :
        /\ page[p] # None /\ ~page[p].landed
        /\ page' = [page EXCEPT ![p].landed = TRUE, ![p].content = page[p].given]
    /\ UNCHANGED <<lockHolder, stateVars, taskVars, holders, pool, liveBuf, clone, pc, localVars>>

(* The forward of the step that was begun writes its rows over those of the step before. *)
OverwriteLive ==
    /\ At("engine", "idle") /\ begun # None /\ liveBuf.step # stepNo
    /\ LET b == begun.batch
           place(s) == CHOOSE w \in Range(b.rows) : w.slot = s
           gen(r) == IF r \in live THEN generation[r] ELSE generation[r] + 1
           row(k, s) == <<<<place(s).req, gen(place(s).req)>>, place(s).pos, k>>
       IN  liveBuf' = [step |-> stepNo,
                       rows |-> [x \in b.keys \X {w.slot : w \in Range(b.rows)} |-> row(x[1], x[2])]]
    /\ UNCHANGED <<lockHolder, stateVars, taskVars, holders, pool, page, clone, pc, localVars>>
=============================================================================
