----------------------------- MODULE PrefixCache -----------------------------
(* The protocol of the prefix cache. One action is one critical section of the code, one function and one   *)
(* event of its traces; long copies lie between two actions. Start reading here; README.md has the words.   *)
EXTENDS SlotsAndReads

(* --------------------------------- Next ---------------------------------- *)
Engine == BeginStep \/ SealOldest \/ Escalate \/ Reserve \/ ClaimPageBegin \/ ClaimPageEnd \/ Freeze \/ Publish
          \/ Dispatch \/ Unreserve \/ Reset \/ ShutdownBegin \/ ShutdownEnd
Builder == TakeStep \/ DiscardStep
Reader == BeginFetch \/ EndFetch \/ DropRead
Committer == ClaimCopy \/ HostReady \/ BeginPoolWrite \/ Complete \/ RecordFailure \/ Wake
Shared == Drain \/ JoinBegin \/ JoinEnd \/ ReleasePage \/ Fail
Environment == CopyLands \/ OverwriteLive
DataStep == Gather \/ Scatter

Next == Engine \/ Builder \/ Reader \/ Committer \/ Shared \/ Environment \/ DataStep
Spec == Init /\ [][Next]_vars


(* Fairness, for liveness: threads and the device go on; nobody has to begin a step, fail or shut down.     *)
Moves(t) == Next /\ pc'[t] # pc[t]
LiveSpec ==
    /\ Spec
    /\ WF_vars(Committer \/ Scatter \/ (ReleasePage /\ UNCHANGED <<pc, eng, taken>>))
    /\ WF_vars(CopyLands)
    /\ \A t \in Readers : WF_vars(Moves(t))
    /\ WF_vars(pc["engine"] \notin {"idle", "raised"} /\ Moves("engine"))

(* ------------------------------ what must hold --------------------------- *)
Tids == Nat \X Requests \X {"immediate", "deferred"}
Generations == Requests \X Nat
Identities == Generations \X Nat \X Keys
MaybeIds == Identities \cup {None}
TaskStates == {"PENDING", "QUEUED", "COPYING", "HOST_READY", "WRITTEN", "FAILED"}

TypeOK ==
    /\ lockHolder \in [{"state", "task", "page"} -> Threads \cup {None}]
    /\ tenant \in [Slots -> Generations \cup {None}]
    /\ version \in [Keys -> [Slots -> Nat]]
    /\ status \in [Keys -> [Slots -> {"ABSENT", "IN_TRANSIT", "COMMITTED"}]]
    /\ writer \in [Keys -> [Slots -> Tids \cup {None}]]
    /\ \A k \in Keys, s \in Slots : (status[k][s] = "IN_TRANSIT") = (writer[k][s] # None)
    /\ tags \in [Keys -> [Slots -> MaybeIds]]
    /\ generation \in [Requests -> Nat] /\ live \subseteq Requests /\ open \in [Requests -> Tids \cup {None}]
    /\ stepNo \in Nat /\ DOMAIN steps \subseteq 1..stepNo /\ epoch \in Nat
    /\ lost \in BOOLEAN /\ closed \in BOOLEAN
    /\ \A t \in DOMAIN tasks : t \in Tids /\ tasks[t].state \in TaskStates
    /\ Range(hi \o lo \o completed \o failed) \subseteq DOMAIN tasks
    /\ charged \in Nat /\ \A p \in Pages : \A h \in holders[p] : h[1] \in {"step", "task"}
    /\ pool \in [Keys -> [Slots -> MaybeIds \cup {Torn}]]

(* A delivered row is exactly the (generation, position, key) that the read asked for when it was planned.  *)
ReadIntegrity == delivery # None => delivery.got = delivery.asked

(* Nothing that is visible in a slot is of another tenant than its last, whatever keys that one writes.     *)
TenantIsolation == \A k \in Keys, s \in Slots : status[k][s] # "ABSENT" => tags[k][s][1] = tenant[s]

(* What was given to the save is what lands.                                                                *)
SourceFrozen == \A p \in Pages : page[p] # None => (page[p].landed => page[p].content \in {page[p].given, <<>>})
                                                   /\ (page[p].landed /\ page[p].given # <<>> => page[p].content # <<>>)

(* A page is not reclaimed while a step, a task or a running copy uses it.                                  *)
PageExclusive ==
    /\ At("engine", "freeze") => page[eng.page] = None \/ page[eng.page].landed
    /\ At("builder", "copyOut") => page[taken.page].step = taken.step
    /\ \A t \in DOMAIN tasks : tasks[t].page # None /\ tasks[t].state \in {"QUEUED", "COPYING"} =>
            page[tasks[t].page].step = tasks[t].first
    /\ At("committer", "writing") => \A t \in job.tids : tasks[t].page # None => page[tasks[t].page].step = tasks[t].first
    /\ \A p \in Pages : Cardinality({h[2] : h \in {x \in holders[p] : x[1] = "step"}}) <= 1

(* At most one task may still land a row on a place, a write has one row for it, the last claim wins.       *)
SingleWriter ==
    /\ \A k \in Keys, s \in Slots :
        Cardinality({t \in DOMAIN tasks : /\ tasks[t].landing = None /\ tasks[t].state # "FAILED"
                                          /\ \E w \in Lands(t) : w.key = k /\ w.slot = s}) <= 1
    /\ At("committer", "writing") => \A v, w \in Landing(job.tids) : v.key = w.key /\ v.slot = w.slot => v = w
    /\ \A k \in Keys, s \in Slots : status[k][s] = "COMMITTED" => pool[k][s] = tags[k][s]

(* Committed rows of a pending read were copied aside before a claim took their place.                      *)
PreservedBeforeOverwrite ==
    \A r \in DOMAIN reads : reads[r].epoch = epoch =>
        \A s \in FromPool(reads[r]) : version[reads[r].key][s] # reads[r].version[s] =>
            s \in DOMAIN reads[r].aside /\ reads[r].aside[s] = reads[r].want[s]

(* Whoever is woken finds the record on the next drain.                                                     *)
RecordBeforeWake == \A t \in DOMAIN tasks : tasks[t].finished => t \in Range(completed \o failed)

(* The life cycle of a write task: <<trigger, source, destination>>, as palimpsest.lifecycle declares it.   *)
Legal ==
    { <<"queue", "PENDING", "QUEUED">>,
      <<"claim_copy", "QUEUED", "COPYING">>,
      <<"host_ready", "COPYING", "HOST_READY">>,
      <<"complete", "HOST_READY", "WRITTEN">>,
      <<"fail", "PENDING", "FAILED">>,
      <<"fail", "QUEUED", "FAILED">>,
      <<"fail", "COPYING", "FAILED">>,
      <<"fail", "HOST_READY", "FAILED">> }
(* The action property TaskChain has this for each task; OneClaimant: one queue, one claimant of the copy.   *)
TaskStep ==
    \A t \in DOMAIN tasks' :
        IF t \notin DOMAIN tasks THEN tasks'[t].state \in {"PENDING", "QUEUED"}
        ELSE tasks'[t].state # tasks[t].state => \E x \in Legal : x[2] = tasks[t].state /\ x[3] = tasks'[t].state
TaskChain == [][TaskStep]_vars
OneClaimant ==
    /\ \A t \in DOMAIN tasks : tasks[t].state = "COPYING" => t \in job.tids
    /\ \A t \in Range(hi \o lo) : tasks[t].state = "QUEUED"
    /\ Cardinality(Range(hi \o lo)) = Len(hi \o lo)

(* Each step is consumed exactly once.                                                                      *)
ConsumeOnce == \A n \in DOMAIN consumed : consumed[n] = IF n \in DOMAIN steps THEN 0 ELSE 1

(* Whatever is held is held by somebody who will still release it.                                          *)
ReleasedOnce ==
    /\ \A p \in Pages : \A h \in holders[p] :
        IF h[1] = "task" THEN h[2] \in DOMAIN tasks /\ ~tasks[h[2]].recorded
        ELSE \/ h[2] \in DOMAIN steps \cup DOMAIN eng.leave
             \/ h[2] = stepNo /\ eng.page = p
             \/ pc["builder"] \in {"copyOut", "discarded"} /\ taken.step = h[2]
    /\ \A r \in DOMAIN reads :
        \/ begun # None /\ r \in begun.reads
        \/ taken # None /\ r \in taken.reads
        \/ \E n \in DOMAIN steps : r \in steps[n].reads
    /\ \A n \in DOMAIN tickets : tickets[n].holders # {} /\ tickets[n].holders \subseteq DOMAIN tasks
    /\ Cardinality(Range(completed \o failed)) = Len(completed \o failed)

(* Charged bytes are the bytes of live clones, and were charged before those exist.                         *)
BudgetExact ==
    /\ charged <= Budget
    /\ charged = eng.bytes + Sum([n \in DOMAIN tickets |-> tickets[n].bytes], DOMAIN tickets)
    /\ Cardinality(DOMAIN clone) <= eng.bytes
    /\ DOMAIN tickets = UNION {{w.step : w \in tasks[t].rows} : t \in
            {x \in DOMAIN tasks : tasks[x].deferred /\ tasks[x].state \in {"PENDING", "QUEUED", "COPYING"}}}

(* After a lost write was seen, nothing is begun, published, taken or reset; it cannot go unseen.           *)
FailLoud == [][ /\ failed # <<>> /\ failed' = <<>> => lost'
                /\ lost => /\ UNCHANGED <<stepNo, epoch>> /\ DOMAIN consumed' = DOMAIN consumed /\ lost'
                           /\ (pc'["builder"] = "copyOut" => At("builder", "copyOut")) ]_vars

(* No lock covers a wait, a fetch or a copy.                                                                *)
Waiting == {"joinLast", "joinFlush", "joinRead", "claimPage", "copyOut", "copying", "writing", "gather"}
NoWaitUnderLock == \A l \in DOMAIN lockHolder : lockHolder[l] # None => pc[lockHolder[l]] \notin Waiting

(* What a user sees is a RowStore.                                                                          *)
Store == INSTANCE RowStore WITH
    Positions <- Nat, Reads <- Nat \X Requests \X Keys \X {"early", "late"},
    rows <- [k \in Keys |-> [s \in Slots |-> IF status[k][s] = "ABSENT" THEN None
                                             ELSE [id |-> tags[k][s], landed |-> status[k][s] = "COMMITTED"]]],
    asked <- [r \in DOMAIN reads |-> reads[r].want],
    answer <- IF delivery = None THEN None ELSE [asked |-> delivery.asked, got |-> delivery.got]
RefinesRowStore == Store!Spec
=============================================================================
