---------------------------- MODULE TraceReplay -----------------------------
(* Traces of the code, one event after the other, as behaviors of PrefixCache. `Traces` is in TraceFile, which *)
(* is written for each batch; a trace's number is chosen in Init. An event is accepted when the action of its   *)
(* name is possible and leaves what the code logged. What the code does not log (the rows that a gather reads, *)
(* those that a pool write lands, the live buffers) happens as late as it can, and by itself.                   *)
(*                                                                                                              *)
(* A trace that is not `whole` is a projection: it has the rows of a few blocks, and of the other events those   *)
(* that touch them. There a drain, an escalation, a wait or a dropped read may have a cause that was left out.   *)
EXTENDS PrefixCache, TraceFile

CONSTANT Explained  \* whether a rejection is to be explained

VARIABLES trace, \* which trace
          cursor \* the next event; 0 when the verdict was said

ASSUME Traces # <<>>  \* else the class that reads them is not there

TraceBlocks == {{s \in Slots : s \div BlockSize = b} : b \in {s \div BlockSize : s \in Slots}}
NoSchedule == {<<>>}

Trace == Traces[trace]
Events == Trace.events
Due == cursor \in 1..Len(Events)
E == Events[cursor]

-----------------------------------------------------------------------------
(* What the events say, in the words of the specification.                                                      *)

ToPlan(p) ==
    LET share(r) == {x \in Range(p.rows) : x.request = r}
        hit(r) == {x \in Range(p.hits) : x.request = r}
    IN  [ended |-> Range(p.ended), given |-> Range(p.given), order |-> p.order,
         rows |-> [r \in Requests |-> UNION {{<<x.positions[i], x.slots[i]>> : i \in DOMAIN x.slots} : x \in share(r)}],
         hits |-> [r \in Requests |-> IF hit(r) = {} THEN <<>> ELSE (CHOOSE x \in hit(r) : TRUE).slots],
         keys |-> Range(p.keys), again |-> Range(p.again)]

\* What the clones of a step take, as it was logged. (It stands for Cost.)
CostHere(plan) == IF E.action = "reserve" THEN E.size ELSE 0

\* Hits that the step's own rows overtake, also where those were left out. (It stands for Overtaken.)
OvertakenHere(plan) == {r \in Hits(plan) : Range(plan.hits[r]) \cap PlanSlots(plan) # {} \/ r \in plan.again}

\* A flush that was left out may also have brought an open task to its end. (It stands for CanTake.)
CanTakeHere(plan, r) ==
    /\ openTask[r] \in DOMAIN tasks
    /\ tasks[openTask[r]].state = "PENDING"
    /\ tasks[openTask[r]].lost \cap (SlotsOf(plan, r) \X (plan.keys \cap Deferred)) = {}

HitsOf(seq) == {x.hit : x \in Range(seq)}
Gained(new, old) == {<<t, c>> \in UNION {{t} \X new[t].lost : t \in DOMAIN new} :
                        t \notin DOMAIN old \/ c \notin old[t].lost}

\* Some read of the state that the event should have left is as the code planned it.
PlannedAs(x) ==
    /\ x.hit \in DOMAIN reads'
    /\ reads'[x.hit].slots = x.slots /\ reads'[x.hit].ver = x.versions /\ reads'[x.hit].src = x.sources
    /\ IF Trace.whole THEN reads'[x.hit].joins = Range(x.joins) ELSE reads'[x.hit].joins \subseteq Range(x.joins)
SlotsAs(x) ==
    \A i \in DOMAIN x.slots :
        /\ tenant'[x.slots[i]] = x.tenants[i]
        /\ \A k \in Range(x.keys) : LET c == <<x.slots[i], k.key>> IN
            version'[c] = k.versions[i] /\ status'[c] = k.status[i] /\ writer'[c] = k.writers[i]
StatesAs(seq) == \A x \in Range(seq) : x.tid \in DOMAIN tasks' => tasks'[x.tid].state = x.state
QueuesAs(e) == Range(hi') = Range(e.hi) /\ Range(lo') = Range(e.lo)
\* In a projection a flush that was left out may have sealed more.
SealedAs(seq) == /\ Range(seq) \subseteq eng'.up
                 /\ LET more == eng'.up \ Range(seq) IN IF Trace.whole THEN more = {} ELSE Raised(more) = {}
RecordsAs(e) == Range(completed') = Range(e.completed) /\ Range(failures') = Range(e.failed)
HoldersAs(e) == holders'[e.page] = Range(e.holders)
ChargedAs(e) == Trace.whole => charged' = e.charged
PendingAs(e) == Trace.whole => Cardinality({h \in DOMAIN reads' : reads'[h].st \in {"pending", "fetching"}}) = e.pending
Ended == {h \in Pending : h \notin DOMAIN reads' \/ reads'[h].st = "over" \/ reads'[h].try # reads[h].try}
NewlyPlanned == {h \in DOMAIN reads' : h \notin DOMAIN reads \/ reads'[h].try # reads[h].try}
NewlyKept == {<<h, i>> \in UNION {{h} \X RowsOfRead(h) : h \in Pending} :
                /\ h \in DOMAIN reads' /\ reads'[h].try = reads[h].try
                /\ reads[h].kept[i] = Nothing /\ reads'[h].kept[i] # Nothing}

-----------------------------------------------------------------------------
(* Causes outside of a projection.                                                                              *)

DrainElsewhere == ~Trace.whole /\ Free("state") /\ Free("task") /\ Records /\ TakeRecords /\ UNCHANGED <<lock, eng>>
EscalateElsewhere(T) ==
    /\ ~Trace.whole /\ Free("task") /\ T = Raised(T) /\ Raise(T)
    /\ UNCHANGED <<stateVars, recordVars, budgetVars, holders, memVars, lock, eng, bld, rdr, com, schedVars>>
DropElsewhere(H) ==
    /\ ~Trace.whole /\ Free("state") /\ H \subseteq Pending /\ reads' = Over(H)
    /\ UNCHANGED <<slotVars, reqVars, stepVars, flagVars, taskVars, holders, memVars, lock, eng, bld, rdr, com, schedVars>>
\* A reader may join tasks whose rows were left out.
WaitElsewhere(t) == ~Trace.whole /\ t \in Readers /\ rdr[t].pc \in {"idle", "gather"} /\ UNCHANGED vars

-----------------------------------------------------------------------------
(* One event.                                                                                                   *)

Act(e) ==
    CASE e.action = "drain" -> IF e.thread = "elsewhere" THEN DrainElsewhere ELSE Drain(e.thread)
      [] e.action = "begin_step" -> BeginStep
      [] e.action = "seal_oldest" -> SealOldest
      [] e.action = "publish" -> Publish
      [] e.action = "take_step" -> TakeStep
      [] e.action = "discard_step" -> DiscardStep
      [] e.action = "reset" -> Reset
      [] e.action = "shutdown_begin" -> ShutdownBegin
      [] e.action = "shutdown_end" -> ShutdownEnd
      [] e.action = "begin_fetch" -> BeginFetch(e.thread)
      [] e.action = "end_fetch" -> EndFetch(e.thread)
      [] e.action = "drop_read" -> DropRead(e.thread) \/ DropElsewhere(Range(e.hits))
      [] e.action = "dispatch" -> Dispatch
      [] e.action = "escalate" -> IF eng.up = {} THEN EscalateElsewhere(Range(e.tids)) ELSE Escalate
      [] e.action = "join_begin" -> JoinBegin(e.thread) \/ WaitElsewhere(e.thread)
      [] e.action = "join_end" -> JoinEnd(e.thread) \/ WaitElsewhere(e.thread)
      [] e.action = "reserve" -> Reserve
      [] e.action = "unreserve" -> Unreserve
      [] e.action = "claim_page_begin" -> ClaimPageBegin
      [] e.action = "claim_page_end" -> ClaimPageEnd
      [] e.action = "freeze" -> Freeze
      [] e.action = "copy_lands" -> CopyLands(e.page)
      [] e.action = "release_page" -> ReleasePage(e.thread)
      [] e.action = "claim_copy" -> ClaimCopy
      [] e.action = "host_ready" -> HostReady
      [] e.action = "begin_pool_write" -> BeginPoolWrite
      [] e.action = "complete" -> Complete
      [] e.action = "fail" -> Fail(e.thread)
      [] e.action = "record_failure" -> RecordFailure(e.thread)
      [] e.action = "wake" -> Wake(e.thread)
      [] OTHER -> FALSE

\* What the event must have left, by the name of what it is about.
Left(e) ==
    CASE e.action = "drain" ->
            [drained |-> Range(completed) = Range(e.written) /\ Range(failures) = Range(e.failed),
             status |-> \A x \in Range(e.status) : \A i \in DOMAIN x.slots : status'[<<x.slots[i], x.key>>] = x.status[i]]
      [] e.action = "begin_step" ->
            [dropped |-> Ended = Range(e.dropped), sealed |-> SealedAs(e.sealed), slots |-> SlotsAs(e.retired),
             reads |-> NewlyPlanned = HitsOf(e.reads) /\ \A x \in Range(e.reads) : PlannedAs(x)]
      [] e.action = "seal_oldest" ->
            [sealed |-> {t \in Range(openTask) : t \notin Range(openTask')} \ {NoTask} = Range(e.sealed),
             flushed |-> eng'.up = Range(e.flushed)]
      [] e.action = "publish" ->
            [step |-> DOMAIN steps' \ DOMAIN steps = {e.step} /\ steps'[e.step] = e.page,
             preserved |-> NewlyKept = Range(e.preserved), dropped |-> Ended = Range(e.dropped),
             tasks |-> DOMAIN tasks' \ DOMAIN tasks = Range(e.tids) \cup Range(e.opened),
             takers |-> \A x \in Range(e.takers) : openTask'[x.request] = x.tid,
             sealed |-> SealedAs(e.closed),
             lost |-> {x \in Gained(tasks', tasks) : x[2][1] \notin Range(e.retired)} = Range(e.lost),
             retired |-> {s \in Slots : tenant[s] # NoTenant /\ tenant'[s] = NoTenant} = Range(e.retired),
             reads |-> NewlyPlanned = HitsOf(e.reads) /\ \A x \in Range(e.reads) : PlannedAs(x),
             slots |-> SlotsAs(e.claimed), holders |-> HoldersAs(e)]
      [] e.action = "take_step" -> [step |-> bld'.step = e.step, steps |-> DOMAIN steps' = Range(e.steps)]
      [] e.action = "discard_step" -> [step |-> bld'.step = e.step, steps |-> DOMAIN steps' = Range(e.steps),
                                       dropped |-> Ended = Range(e.dropped)]
      [] e.action = "reset" -> [sealed |-> SealedAs(e.sealed)]
      [] e.action = "shutdown_end" -> [dropped |-> Ended = Range(e.dropped), steps |-> DOMAIN steps = Range(e.steps)]
      [] e.action = "begin_fetch" -> [read |-> rdr'[e.thread].hit = e.hit /\ reads'[e.hit].st = "fetching"]
      [] e.action = "end_fetch" ->
            [read |-> rdr[e.thread].hit = e.hit,
             preserved |-> /\ \A i \in Range(e.preserved) : reads[e.hit].kept[i] # Nothing
                           /\ \A i \in RowsOfRead(e.hit) :
                                reads[e.hit].src[i] = "pool" /\ Moved(e.hit, i) => i \in Range(e.preserved),
             rows |-> reads'[e.hit].step # 0 => reads'[e.hit].got = reads'[e.hit].want,
             pending |-> PendingAs(e)]
      [] e.action = "drop_read" -> [reads |-> Ended = Range(e.hits), pending |-> PendingAs(e)]
      [] e.action \in {"dispatch", "claim_copy"} -> [queues |-> QueuesAs(e)]
      [] e.action = "escalate" -> [tasks |-> Range(hi') \ Range(hi) = Range(e.tids), queues |-> QueuesAs(e)]
      [] e.action = "join_begin" ->
            [tasks |-> (IF e.thread = "engine" THEN eng'.wait = Range(e.tids)
                        ELSE Trace.whole => rdr'[e.thread].wait = Range(e.tids)) /\ StatesAs(e.tasks)]
      [] e.action = "join_end" -> [tasks |-> StatesAs(e.tasks)]
      [] e.action = "reserve" -> [fits |-> (eng'.pc = "reserved") = e.fits, charged |-> ChargedAs(e)]
      [] e.action = "unreserve" -> [charged |-> ChargedAs(e)]
      [] e.action = "claim_page_begin" -> [step |-> eng'.step = e.step]
      [] e.action = "claim_page_end" -> [page |-> eng'.page = e.page, holders |-> HoldersAs(e)]
      [] e.action = "freeze" -> [page |-> eng.page = e.page /\ eng.step = e.step]
      [] e.action = "copy_lands" -> [page |-> Len(onWay[e.page]) = 1]
      [] e.action = "release_page" -> [left |-> holders[e.page] \ holders'[e.page] = Range(e.left), holders |-> HoldersAs(e)]
      [] e.action \in {"host_ready", "fail"} ->
            [tasks |-> com'[e.thread].tids = Range(e.tids) /\ StatesAs(e.tasks), charged |-> ChargedAs(e)]
      [] e.action = "begin_pool_write" ->
            [tasks |-> com'["committer"].tids = Range(e.tids), rows |-> com'["committer"].todo = Range(e.rows)]
      [] e.action \in {"complete", "record_failure"} ->
            [tasks |-> com[e.thread].tids = Range(e.tids), records |-> RecordsAs(e)]
      [] e.action = "wake" -> [tasks |-> com[e.thread].tids = Range(e.tids) /\ StatesAs(e.tasks)]
      [] OTHER -> [nothing |-> TRUE]

Take(e) == Act(e) /\ LET left == Left(e) IN \A what \in DOMAIN left : left[what]

-----------------------------------------------------------------------------
(* What happens between two events.                                                                             *)

\* The scheduler asks for the next step when nothing is left of the last one's request. By then steps that were left
\* out may have saved keys first.
Asks == agenda = <<>> /\ begins < Len(Trace.plans)
Ask == /\ agenda' = <<ToPlan(Trace.plans[begins + 1])>>
       /\ known' = known \cup Range(Trace.plans[begins + 1].known)
       /\ UNCHANGED <<slotVars, liveGen, openTask, gens, tids, stepVars, reads, flagVars, taskVars, holders, memVars, lock,
                      eng, bld, rdr, com, begins, stepIds>>

\* History that no property needs any more is forgotten, so that long traces stay small.
Fetched == {rdr[t].hit : t \in Readers}
Current == Pending \cup {h \in DOMAIN reads : h \in Fetched \/ h[1] = begun.n \/ (reads[h].step # 0 /\ reads[h].step = bld.step)}
Needed == DOMAIN steps \cup {bld.step} \cup UNION {{tasks[t].step} \cup tasks[t].clones : t \in Unfinished}
Awaits == DOMAIN tasks \cup eng.wait \cup UNION {rdr[t].wait : t \in Readers}
Cluttered == DOMAIN reads # Current \/ ~(DOMAIN given \subseteq Needed) \/ ~(woken \subseteq Awaits)
Tidy == /\ reads' = [h \in Current |-> reads[h]]
        /\ given' = [k \in DOMAIN given \cap Needed |-> given[k]]
        /\ saved' = saved \cap Needed /\ consumed' = consumed \cap Needed
        /\ woken' = woken \cap Awaits
        /\ UNCHANGED <<slotVars, reqVars, begun, steps, flagVars, tasks, queueVars, completed, failures, budgetVars,
                       holders, memVars, lock, eng, bld, rdr, com, schedVars>>

\* Data: all at once, and as late as the next event lets it be.
Gathering(e) == /\ e.action \in {"end_fetch", "drop_read"} /\ e.thread \in Readers
                /\ rdr[e.thread].pc # "idle" /\ Gathers(e.thread) /\ ~Gone(e.thread) /\ Missing(e.thread) # {}
Gather(t) ==
    /\ rdr' = [rdr EXCEPT ![t].pc = "gather",
            ![t].buf = [i \in DOMAIN @ |-> IF i \in Missing(t) THEN pool[Place(rdr[t].hit, i)] ELSE @[i]]]
    /\ UNCHANGED <<stateVars, taskVars, holders, memVars, lock, eng, bld, com, schedVars>>
Writing(e) == /\ \/ e.action \in {"release_page", "complete"} /\ e.thread = "committer"
                 \/ e.action = "drain" /\ e.written \o e.failed = <<>>
              /\ At("committer", "writing") /\ com["committer"].todo # {}
Write ==
    /\ LET todo == com["committer"].todo
           writes(c) == {x \in todo : x[2] = c}
       IN  pool' = [c \in Cells |-> IF writes(c) = {} THEN pool[c] ELSE RowOf((CHOOSE x \in writes(c) : TRUE)[1], c)]
    /\ com' = [com EXCEPT !["committer"].todo = {}]
    /\ UNCHANGED <<stateVars, taskVars, holders, buffers, page, onWay, lock, eng, bld, rdr, schedVars>>
Forward(e) == /\ e.thread = "engine" /\ eng.pc = "begun" /\ eng.up = {}
              /\ e.action \in {"join_begin", "reserve", "claim_page_begin"}

\* Steps that leave no event: nobody to raise, a read that is over already, a wait that ends with an error.
NobodyToRaise == eng.up # {} /\ eng.pc # "published" /\ Raised(eng.up) = {}
LetsGo(t, e) == /\ rdr[t].pc \notin {"idle", "joining"} /\ Gone(t)
                /\ \/ e.thread = t /\ e.action \in {"begin_fetch", "take_step", "drop_read"}
                   \/ e.thread = "closer" /\ e.action \in {"drain", "shutdown_end"}
Raising(e) == /\ e.action = "drop_read" /\ e.thread \in Readers
              /\ rdr[e.thread].pc \in {"join", "joining"} /\ ~Gone(e.thread)
              /\ rdr[e.thread].pc = "joining" \/ SomeLost(rdr[e.thread].joins)
\* A save gives up while its copy is under way: the page stays with it.
GivingUp(e) == /\ e.thread = "engine" /\ eng.pc = "frozen" /\ ~Landed(eng.page)
               /\ e.action \in {"unreserve", "join_begin", "reserve", "claim_page_begin"}
RaisingSave(e) == /\ e.thread = "engine" /\ eng.pc \in {"joining", "flushing", "page wait"}
                  /\ e.action \in {"begin_step", "drain", "reset", "join_begin", "reserve", "claim_page_begin", "unreserve"}

Between == Gathering(E) \/ Writing(E) \/ Forward(E) \/ NobodyToRaise \/ (\E t \in Readers : LetsGo(t, E)) \/ Raising(E) \/ RaisingSave(E)
           \/ GivingUp(E)
Silent ==
    \/ Gathering(E) /\ Gather(E.thread)
    \/ Writing(E) /\ Write
    \/ Forward(E) /\ OverwriteLive
    \/ NobodyToRaise /\ Escalate
    \/ \E t \in Readers : LetsGo(t, E) /\ DropRead(t)
    \/ Raising(E) /\ (JoinBegin(E.thread) \/ (JoinEnd(E.thread) /\ rdr'[E.thread].pc = "error"))
    \/ GivingUp(E) /\ ReleasePage("engine") /\ UNCHANGED holders
    \/ RaisingSave(E) /\ ((JoinEnd("engine") /\ eng'.pc \in {"idle", Back}) \/ (eng.pc = "page wait" /\ ClaimPageEnd /\ eng'.pc # "claimed"))

-----------------------------------------------------------------------------
(* The replay.                                                                                                  *)

TraceInit == Init /\ trace \in 1..Len(Traces) /\ cursor = 1

Stay == UNCHANGED <<trace, cursor>>
Say(what) == PrintT("PALIMPSEST " \o ToString(what)) /\ cursor' = 0 /\ UNCHANGED <<vars, trace>>

\* Why: the parts of what it left that no step of the action leaves, or "guard" where the action is not possible.
Parts == {"drained", "status", "dropped", "sealed", "flushed", "slots", "reads", "step", "preserved", "tasks", "takers", "lost",
          "retired", "holders", "steps", "read", "rows", "pending", "queues", "fits", "charged", "page", "left", "records"}
Why == IF ENABLED Act(E)
       THEN {what \in Parts : /\ ENABLED (Act(E) /\ what \in DOMAIN Left(E))
                              /\ ~ENABLED (Act(E) /\ Left(E)[what])}
       ELSE {"guard"}
Seen == [eng |-> [pc |-> eng.pc, page |-> eng.page, step |-> eng.step, last |-> eng.last, wait |-> eng.wait, up |-> eng.up],
         bld |-> bld, com |-> com, lock |-> lock,
         rdr |-> [t \in Readers |-> [pc |-> rdr[t].pc, hit |-> rdr[t].hit]],
         hi |-> hi, lo |-> lo, completed |-> completed, failures |-> failures, holders |-> holders,
         tasks |-> [t \in DOMAIN tasks |-> tasks[t].state], steps |-> steps, begun |-> begun.n, openTask |-> openTask,
         reads |-> [h \in DOMAIN reads |-> reads[h].st], charged |-> charged, failed |-> failed, closed |-> closed]

\* An event that cannot be taken ends its trace; that is said only where it is asked for, as it costs as much again.
TraceNext ==
    /\ cursor # 0
    /\ IF Asks THEN Ask /\ Stay
       ELSE IF Cluttered THEN Tidy /\ Stay
       ELSE IF ~Due THEN Say(<<"ACCEPT", Trace.name, Len(Events)>>)
       ELSE IF Between THEN Silent /\ Stay
       ELSE \/ Take(E) /\ cursor' = cursor + 1 /\ UNCHANGED trace
            \/ Explained /\ ~ENABLED Take(E) /\ Say(<<"REJECT", Trace.name, cursor, E.seq, E.action, Why, Seen>>)

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, cursor>>
=============================================================================
