---------------------------- MODULE PrefixCache -----------------------------
(* The protocol of the prefix cache, and what must hold of it. Start at `Next`: each line is one action, one *)
(* critical section, one function of the code and one event of its traces; long copies lie between two      *)
(* actions. The actions are in SlotOwnership, Reads, WriteTasks and StagingPages, by the lock that they take.*)
EXTENDS SlotOwnership

Init ==
    /\ tenant = [s \in Slots |-> NoTenant]
    /\ version = [c \in Cells |-> 0]
    /\ status = [c \in Cells |-> "ABSENT"]
    /\ writer = [c \in Cells |-> NoTask]
    /\ ident = [c \in Cells |-> Absent]
    /\ liveGen = [r \in Requests |-> NoTenant] /\ openTask = [r \in Requests |-> NoTask]
    /\ gens = 0 /\ tids = 0 /\ known = {}
    /\ begun = NoStep /\ steps = <<>> /\ saved = {} /\ consumed = {} /\ given = <<>>
    /\ reads = <<>>
    /\ failed = FALSE /\ closed = FALSE /\ epoch = 0
    /\ tasks = <<>> /\ hi = <<>> /\ lo = <<>> /\ completed = <<>> /\ failures = <<>> /\ woken = {}
    /\ charged = 0 /\ tickets = {}
    /\ holders = [p \in Pages |-> {}]
    /\ buffers = Blank /\ page = [p \in Pages |-> Blank] /\ onWay = [p \in Pages |-> <<>>] /\ pool = Blank
    /\ lock = [l \in {"state", "task", "page"} |-> Nobody]
    /\ eng = [pc |-> "idle", page |-> NoPage, step |-> 0, last |-> {}, wait |-> {}, up |-> {}, reserved |-> 0,
              clone |-> Blank]
    /\ bld = [pc |-> "idle", step |-> 0, page |-> NoPage]
    /\ rdr = [t \in Readers |-> IdleReader]
    /\ com = [t \in Writers |-> [pc |-> "idle", tids |-> {}, todo |-> {}]]
    /\ agenda \in Schedules /\ begins = 0 /\ stepIds = 0

Next ==
    \* steps and slots (state lock; inside it Drain, BeginStep, SealOldest, Publish and Reset take the task lock, Publish
    \* also the page lock)
    \/ \E t \in {"engine", "builder", "closer"} : Drain(t)
    \/ BeginStep
    \/ SealOldest
    \/ Publish
    \/ TakeStep
    \/ DiscardStep
    \/ Reset
    \/ ShutdownBegin
    \/ ShutdownEnd
    \* reads (state lock; RowGathered is data)
    \/ \E t \in Readers : BeginFetch(t)
    \/ \E t \in Readers : RowGathered(t)
    \/ \E t \in Readers : EndFetch(t)
    \/ \E t \in Readers \cup {"builder"} : DropRead(t)
    \* write tasks (task lock; PoolRowWritten is data)
    \/ Dispatch
    \/ Escalate
    \/ \E t \in {"engine"} \cup Readers : JoinBegin(t)
    \/ \E t \in {"engine"} \cup Readers : JoinEnd(t)
    \/ Reserve
    \/ Unreserve
    \/ ClaimCopy
    \/ HostReady
    \/ BeginPoolWrite
    \/ PoolRowWritten
    \/ Complete
    \/ \E t \in Writers : Fail(t)
    \/ \E t \in Writers : RecordFailure(t)
    \/ \E t \in Writers : Wake(t)
    \* staging pages (page lock; Freeze takes none; CopyLands and OverwriteLive are the environment's)
    \/ ClaimPageBegin
    \/ ClaimPageEnd
    \/ Freeze
    \/ \E t \in {"engine", "builder"} \cup Writers : ReleasePage(t)
    \/ \E p \in Pages : CopyLands(p)
    \/ OverwriteLive

Spec == Init /\ [][Next]_vars

\* What must go on for anything to end: committer, readers, builder and device (where copies may stall: those who wait
\* for it), and an engine in the middle of a save. The scheduler may stop asking, a forward need not come.
Fairness ==
    /\ WF_vars(ClaimCopy \/ HostReady \/ BeginPoolWrite \/ PoolRowWritten \/ Complete
                \/ (CanStall /\ Fail("committer")))
    /\ \A t \in Writers : WF_vars(RecordFailure(t)) /\ WF_vars(Wake(t)) /\ WF_vars(ReleasePage(t))
    /\ WF_vars(Fail("closer")) /\ WF_vars(Drain("closer") \/ ShutdownEnd)
    /\ \A t \in Readers : WF_vars(BeginFetch(t) \/ RowGathered(t) \/ JoinBegin(t)
                                  \/ JoinEnd(t) \/ EndFetch(t) \/ DropRead(t))
    /\ SF_vars(Drain("builder") \/ TakeStep \/ (failed /\ DiscardStep))
    /\ WF_vars(ReleasePage("builder"))
    /\ \A p \in Pages : WF_vars(~CanStall /\ CopyLands(p))
    /\ SF_vars(ClaimPageEnd)
    /\ WF_vars(Escalate \/ JoinBegin("engine") \/ JoinEnd("engine") \/ Reserve \/ SealOldest \/ ClaimPageBegin
               \/ Freeze \/ Publish \/ Dispatch \/ ReleasePage("engine") \/ Unreserve)
    /\ SF_vars(Drain("engine"))
    /\ WF_vars(lock.state = "engine" /\ (BeginStep \/ Reset))
LiveSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
(* What a reader sees.                                                                                     *)

\* A row that a saved step delivers is the one that its hit asked for, or the read raised: so does one that lacks a row
\* which must be there.
ReadIntegrity ==
    \A h \in DOMAIN reads : reads[h].st = "done" =>
        (reads[h].step # 0 => reads[h].got = reads[h].want) /\ ~AbsentHidden(h)

\* What can be planned on is the present tenant's, of each key, also of those that it never wrote; and a block has
\* one tenant, also where that tenant has not written yet.
TenantIsolation ==
    /\ \A c \in Cells : status[c] # "ABSENT" => ident[c][1] = tenant[c[1]] /\ tenant[c[1]] # NoTenant
    /\ \A b \in Blocks : Cardinality({tenant[s] : s \in b} \ {NoTenant}) <= 1

\* A pending read whose row was claimed has a copy of the row that it asked for.
PreservedBeforeOverwrite ==
    \A h \in Pending : \A i \in RowsOfRead(h) :
        reads[h].src[i] = "pool" /\ Moved(h, i) /\ reads[h].epoch = epoch => reads[h].kept[i] = reads[h].want[i]

-----------------------------------------------------------------------------
(* What is written.                                                                                        *)

\* The given rows of a step's immediate keys that lie, or will lie, on its page.
OnPage(k, p) == \A c \in Slots \X Immediate : given[k][c] \in {Garbage, page[p][c]}
Newest(t, c) == CHOOSE k \in tasks[t].clones : given[k][c] # Garbage
                    /\ \A m \in tasks[t].clones : given[m][c] # Garbage => m <= k

\* What the forward left in the live buffers when the step was saved is what lands.
SourceFrozen ==
    /\ \A k \in DOMAIN steps : Landed(steps[k]) => OnPage(k, steps[k])
    /\ bld.pc = "copying" /\ Landed(bld.page) => OnPage(bld.step, bld.page)
    /\ \A t \in Unfinished : IF tasks[t].late
            THEN \A c \in tasks[t].rows : tasks[t].bytes[c] = given[Newest(t, c)][c]
            ELSE LET p == tasks[t].page
                 IN  <<"task", t>> \in holders[p] /\ Landed(p) => OnPage(tasks[t].step, p)

\* Who may still write cell c: tasks that have not decided what they write.
Undecided == {t \in Unfinished : ~(t \in com["committer"].tids /\ At("committer", "writing"))}
MayWrite(c) == {t \in Undecided : c \in tasks[t].rows \ tasks[t].lost}

\* One task at most may land a row, the one that claimed it last; what is committed is that row, whole.
SingleWriter ==
    /\ \A c \in Cells : MayWrite(c) \subseteq {writer[c]}
    /\ \A x, y \in com["committer"].todo : x[2] = y[2] => x = y
    /\ \A c \in Cells : status[c] = "COMMITTED" => pool[c] = ident[c]

Moves(table, from, to) == from = to \/ \E x \in table : x[2] = from /\ x[3] = to
LegalMove(t) == Moves(TaskNext, tasks[t].state, tasks'[t].state)
QueuesRight ==
    LET queue == hi \o lo
    IN  /\ \A i, j \in DOMAIN queue : queue[i] = queue[j] => i = j
        /\ \A t \in Range(queue) : t \in DOMAIN tasks /\ tasks[t].state = "QUEUED"

\* Each task goes its way step by step, is queued at most once and claimed at most once, and is gone when final. So
\* does each row: nothing is committed that was not on its way.
TaskChain == [][ /\ \A t \in DOMAIN tasks \cap DOMAIN tasks' : LegalMove(t)
                 /\ \A c \in Cells : Moves(RowNext, status[c], status'[c])
                 /\ \A t \in DOMAIN tasks \ DOMAIN tasks' : tasks[t].state \in Final
                 /\ \A t \in DOMAIN tasks' \ DOMAIN tasks : tasks'[t].state \in {"PENDING", "QUEUED"}
                 /\ QueuesRight' ]_vars

\* Whoever was woken finds the record, or it has been drained.
RecordBeforeWake == \A t \in woken : t \notin DOMAIN tasks \/ t \in Range(completed) \cup Range(failures)

-----------------------------------------------------------------------------
(* What is held, and let go of.                                                                            *)

\* The steps and tasks that need page p now.
StepsOn(p) == {k \in DOMAIN steps : steps[k] = p}
              \cup (IF bld.pc \in {"copying", "leaving"} /\ bld.page = p THEN {bld.step} ELSE {})
              \cup (IF eng.pc \in {"claimed", "frozen"} /\ eng.page = p THEN {eng.step} ELSE {})
              \cup {x[2][2] : x \in {y \in com["closer"].todo : At("closer", "ended") /\ y[1] = p}}
StillOnPage(t) ==
    \/ tasks[t].state \in {"QUEUED", "COPYING"}
    \/ tasks[t].state = "HOST_READY" /\ (At("committer", "writing") => \E x \in com["committer"].todo : x[1] = t)
TasksOn(p) == {t \in DOMAIN tasks : ~tasks[t].late /\ tasks[t].page = p /\ StillOnPage(t)}
LeavesSoon(t) == t \in DOMAIN tasks /\ \E w \in Writers : t \in com[w].tids /\ com[w].pc \in {"writing", "failed"}

\* Whoever uses a page holds it; all holders are of one step; no page is taken while a copy into it is under way.
PageExclusive ==
    \A p \in Pages :
        /\ {<<"step", k>> : k \in StepsOn(p)} \cup TaskHolds(TasksOn(p)) \subseteq holders[p]
        /\ Cardinality({IF x[1] = "step" THEN x[2] ELSE tasks[x[2]].step : x \in holders[p]}) <= 1
        /\ Len(onWay[p]) <= 1 /\ (eng.pc = "claimed" /\ eng.page = p => Landed(p))

\* A save that was given up before its copy had landed.
Stuck(k) == CanStall /\ k \notin saved

\* Nothing is held by who does not need it: pages, reads, bytes, tickets. When a request's last task is written
\* nothing is left of it.
ReleasedOnce ==
    /\ \A p \in Pages : \A x \in holders[p] :
        IF x[1] = "step" THEN x[2] \in StepsOn(p) \/ Stuck(x[2]) ELSE x[2] \in TasksOn(p) \/ LeavesSoon(x[2])
    /\ \A h \in Pending : LET k == reads[h].step IN
        \/ k = 0 /\ h[1] = begun.n
        \/ k # 0 /\ (k \in DOMAIN steps \/ (bld.step = k /\ bld.pc \in {"copying", "merging", "raising"}))
    /\ eng.reserved > 0 => eng.pc \in {"reserved", "page wait", "claimed", "frozen", "aborted"}
    /\ eng.pc \in {"idle", "stopped"} /\ Unfinished = {} => charged = 0 /\ tickets = {}

\* Tasks that view device clones, and the steps that these are of.
Viewing(t) == tasks[t].late /\ tasks[t].state \in {"PENDING", "QUEUED", "COPYING"}

\* What is charged are the live clones, each once, and those that are about to be made; it never exceeds the budget.
BudgetExact ==
    /\ charged = eng.reserved + SizeOf(tickets)
    /\ charged <= Budget
    /\ Cardinality({c \in Cells : eng.clone[c] # Garbage}) <= eng.reserved
    /\ \A x \in tickets : x.holders # {} /\ x.holders = {t \in DOMAIN tasks : Viewing(t) /\ x.step \in tasks[t].clones}
    /\ \A t \in DOMAIN tasks : Viewing(t) => \A k \in tasks[t].clones : \E x \in tickets : x.step = k

\* Each saved step is there until it is consumed, and is consumed once.
ConsumeOnce == /\ DOMAIN steps \cap consumed = {}
               /\ saved = DOMAIN steps \cup consumed

\* No write is lost unnoticed: a row on its way has a task, or the cache has failed. Then no step is begun, saved or
\* taken any more, and the failed tasks hold no page. Nor is a copy: a step whose rows have not landed is not built.
FailLoud == [][ /\ \A c \in Cells : status'[c] = "IN_TRANSIT" => writer'[c] \in DOMAIN tasks' \/ failed'
                /\ failed => failed' /\ begins' = begins /\ saved' = saved
                             /\ (bld'.pc = "copying" => bld.pc = "copying")
                /\ bld.pc = "copying" /\ bld'.pc = "merging" => Landed(bld.page)
                /\ \A t \in Range(failures') : \A p \in Pages : <<"task", t>> \notin holders'[p] ]_vars

\* Where a thread waits, copies or runs a forward.
Waits(t) ==
    CASE t = "engine" -> eng.pc \in {"forward", "joining", "flush", "flushing", "over budget", "page wait", "claimed"}
      [] t = "builder" -> bld.pc = "copying" \/ (t \in Readers /\ rdr[t].pc # "idle")
      [] t = "prefetch" -> t \in Readers /\ rdr[t].pc # "idle"
      [] OTHER -> com[t].pc \in {"copying", "ready", "writing"}

\* No lock is held over a wait, a flush, a fetch, a forward or a copy.
NoWaitUnderLock == \A t \in Threads : Waits(t) => \A l \in DOMAIN lock : lock[l] # t

-----------------------------------------------------------------------------
(* What comes in the end, where LiveSpec says what must go on. Said of all tasks, and of all reads, at once: this is *)
(* more than each by itself, and holds as a scheduler's plans come to an end.                               *)

\* Tasks that take no more rows are written, or fail.
EveryTaskEnds == LET ending == Unfinished \ Range(openTask) IN ending # {} ~> ending = {}

\* A page that was taken comes free, or a copy keeps it that its save did not wait for any longer.
EveryPageFreed == \A p \in Pages :
    holders[p] # {} ~> holders[p] = {} \/ \E x \in holders[p] : x[1] = "step" /\ Stuck(x[2])

\* Planned reads are delivered or let go of.
EveryReadDropped == Pending # {} ~> Pending = {}

\* A save that waits for writes, bytes or a page gets its page, or raises; none tries for ever.
BlockedSaveProceeds ==
    eng.pc \in {"forward", "joining", "joined", "over budget", "flush", "flushing", "flushed", "reserved", "page wait"}
        ~> eng.pc \in {"claimed", "idle", "stopped"}

\* A shutdown ends, and then nothing is held for a step.
ShutdownEnds == closed ~> At("closer", "ended") /\ com["closer"].todo = {}

-----------------------------------------------------------------------------
(* The protocol does nothing that RowStore does not allow. A row that can be planned on is where its bytes are: *)
(* in the pool, on a page or on its way there, or in a clone.                                                  *)

Written(t, c) == \/ tasks[t].state = "WRITTEN"
                 \/ At("committer", "writing") /\ t \in com["committer"].tids /\ <<t, c>> \notin com["committer"].todo
LastOf(seq) == seq[Len(seq)]
Visible(c) ==
    LET t == writer[c] IN
    CASE status[c] = "ABSENT" -> Absent
      [] status[c] = "COMMITTED" -> pool[c]
      [] t \notin DOMAIN tasks -> ident[c]              \* lost: reads of it raise
      [] tasks[t].state = "FAILED" -> ident[c]
      [] Written(t, c) -> pool[c]
      [] tasks[t].late -> tasks[t].bytes[c]
      [] Landed(tasks[t].page) -> page[tasks[t].page][c]
      [] OTHER -> LastOf(onWay[tasks[t].page])[c]

AsHit(h) == [slots |-> reads[h].slots, key |-> h[3], asked |-> reads[h].want, open |-> reads[h].step = 0,
             got |-> CASE reads[h].st = "done" -> reads[h].got [] reads[h].st = "over" -> <<"error">> [] OTHER -> <<>>]

Rows == INSTANCE RowStore WITH
            store <- [c \in Cells |-> Visible(c)],
            landed <- [c \in Cells |-> status[c] = "COMMITTED"],
            hits <- [h \in DOMAIN reads |-> AsHit(h)]
RefinesRowStore == Rows!Spec
=============================================================================
