----------------------------- MODULE Vocabulary -----------------------------
(* The words of the prefix cache: its constants, its variables grouped by the lock that guards them, and   *)
(* what is read off them. A line of prose stands above each variable and its type below it.                *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Slots,       \* places of one token's row: a set of numbers
    Blocks,      \* the slots that change hands together: a partition of Slots
    Requests,    \* request ids; an id may be used again by a later generation
    Immediate,   \* keys that are written at each step
    Deferred,    \* keys that are written when the request ends or the budget presses
    Hidden,      \* keys whose absent rows make a read raise; the others' are reported as absent
    Pages,       \* staging pages: a set of numbers, 0 not among them
    Budget,      \* rows of deferred clones that the device may hold; no step has more (the code refuses one that does)
    Readers,     \* threads that fetch: "prefetch", "builder" or both
    Schedules    \* what the scheduler may ask for: a set of sequences of plans

CONSTANTS        \* switches of the environment
    CanLag,      \* a copy into a page may land after the step was published
    CanStall,    \* a copy may never land: who waits for it gives up
    CanAbort,    \* a save may fail before it is published, and is tried again
    CanSkip,     \* a step that was begun may stay without a forward
    CanDrop,     \* the builder may drop reads that nobody needs, and discard steps; a gather may fail
    CanFail,     \* a write may fail
    CanReset,    \* the cache may be reset
    CanShutdown  \* the cache may be shut down, at any point

Keys  == Immediate \cup Deferred
Cells == Slots \X Keys                          \* (slot, key): the place of one row
BlockOf(s) == CHOOSE b \in Blocks : s \in b
Whole(S) == UNION {BlockOf(s) : s \in S}         \* the slots of all blocks that S touches

\* A row is known by its identity <<generation, position, key>>: what the bytes are, never where they lie.
Absent  == <<0, 0, "absent">>                   \* the present tenant wrote nothing here
Garbage == <<0, 0, "garbage">>                  \* memory that nobody has written yet
Nothing == <<0, 0, "nothing">>                  \* no copy was made
Bytes   == [Cells -> Nat \X Nat \X STRING]
Blank   == [c \in Cells |-> Garbage]

NoTask == 0
NoTenant == 0
NoPage == 0
Nobody == "nobody"
Writers == {"committer", "closer"}              \* who moves sets of tasks to their end
Threads == {"engine", "builder", "prefetch", "committer", "closer"}

TaskStates == {"PENDING", "QUEUED", "COPYING", "HOST_READY", "WRITTEN", "FAILED"}

\* The life cycle of a write task, in one place: the legal <<trigger, source, destination>>.
TaskNext ==
    { <<"queue", "PENDING", "QUEUED">>,
      <<"claim_copy", "QUEUED", "COPYING">>,
      <<"host_ready", "COPYING", "HOST_READY">>,
      <<"complete", "HOST_READY", "WRITTEN">>,
      <<"fail", "PENDING", "FAILED">>,
      <<"fail", "QUEUED", "FAILED">>,
      <<"fail", "COPYING", "FAILED">>,
      <<"fail", "HOST_READY", "FAILED">> }
Final == {"WRITTEN", "FAILED"}

\* The life cycle of a (slot, key), in the same way.
RowStates == {"ABSENT", "IN_TRANSIT", "COMMITTED"}
RowNext ==
    { <<"claim", "ABSENT", "IN_TRANSIT">>,
      <<"claim", "IN_TRANSIT", "IN_TRANSIT">>,
      <<"claim", "COMMITTED", "IN_TRANSIT">>,
      <<"commit", "IN_TRANSIT", "COMMITTED">>,
      <<"retenant", "ABSENT", "ABSENT">>,
      <<"retenant", "IN_TRANSIT", "ABSENT">>,
      <<"retenant", "COMMITTED", "ABSENT">>,
      <<"reset", "ABSENT", "ABSENT">>,
      <<"reset", "IN_TRANSIT", "ABSENT">>,
      <<"reset", "COMMITTED", "ABSENT">> }

-----------------------------------------------------------------------------
(* Numbers given out, and what the scheduler has in store.                                                 *)

\* How many generations, tasks, begun steps and step ids there were.
VARIABLES gens, tids, begins, stepIds
CountersOK == gens \in Nat /\ tids \in Nat /\ begins \in Nat /\ stepIds \in Nat

\* The plans that the scheduler has not handed out yet.
VARIABLE agenda
AgendaOK == Len(agenda) \in Nat

-----------------------------------------------------------------------------
(* Guarded by the state lock: who owns what, steps, reads.                                                 *)

\* The generation that last claimed the slot.
VARIABLE tenant
TenantOK == tenant \in [Slots -> Nat]

\* How often the (slot, key) was claimed, or lost to a new tenant.
VARIABLE version
VersionOK == version \in [Cells -> Nat]

\* What can be read there: nothing, rows on their way, rows in the pool.
VARIABLE status
StatusOK == status \in [Cells -> RowStates]

\* The task whose write is in transit.
VARIABLE writer
WriterOK == writer \in [Cells -> Nat]

\* The generation of each live request: one life from its first publish to its end.
VARIABLE liveGen
LiveGenOK == liveGen \in [Requests -> 0..gens]

\* The deferred task that takes the request's next rows.
VARIABLE openTask
OpenTaskOK == openTask \in [Requests -> 0..tids]

\* The keys that some step has saved.
VARIABLE known
KnownOK == known \subseteq Keys

\* The step that was begun and not yet published, by the number of its begin; n = 0 when there is none.
VARIABLE begun
BegunOK == begun.n \in 0..begins

\* The published steps that nobody has consumed, and the page of each.
VARIABLE steps
StepsOK == DOMAIN steps \subseteq 1..stepIds /\ \A k \in DOMAIN steps : steps[k] \in Pages

\* Planned reads, by hit <<begin, request, key>>. A hit that is planned again has a new `try`.
VARIABLE reads
ReadsOK == \A h \in DOMAIN reads :
    /\ reads[h].st \in {"pending", "fetching", "done", "over"}
    /\ \A i \in 1..Len(reads[h].slots) :
        /\ reads[h].slots[i] \in Slots
        /\ reads[h].src[i] \in {"pool", "staged", "absent"}

\* Whether a failed write was seen; whether the cache was shut down; the number of resets.
VARIABLES failed, closed, epoch
FlagsOK == failed \in BOOLEAN /\ closed \in BOOLEAN /\ epoch \in Nat

-----------------------------------------------------------------------------
(* Guarded by the task lock: write tasks, queues, records, the budget.                                     *)

\* Registered tasks, until their record is drained. `rows` are the cells it writes, `lost` those taken over;
\* a deferred task carries its rows' `bytes`, and views the device `clones` of the steps that gave them.
VARIABLE tasks
TasksOK == \A t \in DOMAIN tasks :
    /\ t \in 1..tids
    /\ tasks[t].state \in TaskStates
    /\ tasks[t].late \in BOOLEAN
    /\ tasks[t].rows \subseteq Cells /\ tasks[t].lost \subseteq Cells

\* Queued tasks: escalated ones, and those of each step in turn.
VARIABLES hi, lo
QueuesOK == hi \in Seq(1..tids) /\ lo \in Seq(1..tids)

\* Records of written and failed tasks that nobody has drained yet.
VARIABLES completed, failures
RecordsOK == completed \in Seq(1..tids) /\ failures \in Seq(1..tids)

\* The tasks whose waiters were woken.
VARIABLE woken
WokenOK == woken \subseteq 1..tids

\* Rows of device clones that are charged, and the tickets: one per step, with the tasks that hold it.
VARIABLES charged, tickets
BudgetOK == charged \in Nat /\ \A k \in tickets : k.size \in Nat /\ k.holders \subseteq 1..tids

-----------------------------------------------------------------------------
(* Guarded by the page lock.                                                                               *)

\* Who keeps each staging page busy: <<"step", id>> and <<"task", id>>.
VARIABLE holders
HoldersOK == \A p \in Pages : \A who \in holders[p] : who[1] \in {"step", "task"} /\ who[2] \in Nat

-----------------------------------------------------------------------------
(* Memory. No lock: what keeps it whole is who may touch it when.                                          *)

\* The live output buffers, which each forward overwrites.
VARIABLE buffers
BuffersOK == buffers \in Bytes

\* The bytes of each page, and the copies into it that were queued and have not landed, in order.
VARIABLES page, onWay
PageOK == page \in [Pages -> Bytes] /\ onWay \in [Pages -> Seq(Bytes)]

\* The durable host rows.
VARIABLE pool
PoolOK == pool \in Bytes

-----------------------------------------------------------------------------
(* The threads: how far each has come.                                                                     *)

\* Who holds each lock. Critical sections are atomic here, so only the state lock is ever held between two
\* actions: from the drain to the action that it belongs to.
VARIABLE lock
LockOK == lock \in [{"state", "task", "page"} -> Threads \cup {Nobody}]

\* The engine: `last` are the immediate tasks of the last step, `wait` those it waits for, `up` those to
\* escalate; `reserved` is charged and not yet on a ticket, `clone` are the rows cloned for it.
VARIABLE eng
EngOK == /\ eng.pc \in {"idle", "begun", "forward", "joining", "joined", "over budget", "flush", "flushing",
                        "flushed", "reserved", "page wait", "claimed", "frozen", "published", "aborted", "stopped"}
         /\ eng.page \in Pages \cup {NoPage} /\ eng.step \in 0..stepIds /\ eng.reserved \in Nat
         /\ eng.up \cup eng.last \cup eng.wait \subseteq 1..tids /\ eng.clone \in Bytes

\* The builder: the step that it consumes, and its page. It is `raising` when the step's rows did not land in time.
VARIABLE bld
BldOK == bld.pc \in {"idle", "copying", "merging", "raising", "leaving"}

\* Readers: the read that each fetches, and the rows gathered so far.
VARIABLE rdr
RdrOK == \A t \in Readers : rdr[t].pc \in {"idle", "join", "joining", "gather", "error"}

\* The committer, and whoever shuts the cache down: their tasks, and the rows still to be written.
VARIABLE com
ComOK == \A t \in Writers :
    /\ com[t].pc \in {"idle", "copying", "ready", "writing", "failed", "recorded", "closing", "ended"}
    /\ com[t].tids \subseteq 1..tids

-----------------------------------------------------------------------------
(* History, for the properties only: no action's guard reads it.                                           *)

\* The identity that the last claim of a cell gave it.
VARIABLE ident
IdentOK == ident \in Bytes

\* Step ids that were published, and that were consumed.
VARIABLES saved, consumed

\* What each published step was given to save.
VARIABLE given
HistoryOK == /\ saved \subseteq 1..stepIds /\ consumed \subseteq 1..stepIds
             /\ DOMAIN given = saved /\ \A k \in saved : given[k] \in Bytes

TypeOK == /\ TenantOK /\ VersionOK /\ StatusOK /\ WriterOK /\ LiveGenOK /\ OpenTaskOK /\ CountersOK /\ KnownOK
          /\ BegunOK /\ StepsOK /\ ReadsOK /\ FlagsOK
          /\ TasksOK /\ QueuesOK /\ RecordsOK /\ WokenOK /\ BudgetOK
          /\ HoldersOK /\ BuffersOK /\ PageOK /\ PoolOK
          /\ LockOK /\ EngOK /\ BldOK /\ RdrOK /\ ComOK /\ AgendaOK /\ IdentOK /\ HistoryOK

slotVars   == <<tenant, version, status, writer, ident>>
reqVars    == <<liveGen, openTask, gens, tids, known>>
stepVars   == <<begun, steps, saved, consumed, given>>
flagVars   == <<failed, closed, epoch>>
stateVars  == <<slotVars, reqVars, stepVars, reads, flagVars>>
queueVars  == <<hi, lo>>
recordVars == <<completed, failures, woken>>
budgetVars == <<charged, tickets>>
taskVars   == <<tasks, queueVars, recordVars, budgetVars>>
memVars    == <<buffers, page, onWay, pool>>
schedVars  == <<agenda, begins, stepIds>>
vars == <<stateVars, taskVars, holders, memVars, lock, eng, bld, rdr, com, schedVars>>

-----------------------------------------------------------------------------
(* What is read off the variables.                                                                         *)

Range(seq) == {seq[i] : i \in DOMAIN seq}
Free(l) == lock[l] = Nobody
Without(f, S) == [x \in DOMAIN f \ S |-> f[x]]
RECURSIVE InOrder(_), SizeOf(_)
InOrder(S) == IF S = {} THEN <<>>
              ELSE LET x == CHOOSE y \in S : \A z \in S : y <= z IN <<x>> \o InOrder(S \ {x})
SizeOf(T) == IF T = {} THEN 0 ELSE LET x == CHOOSE y \in T : TRUE IN x.size + SizeOf(T \ {x})
First(S) == {x \in S : \A y \in S : x <= y}       \* the least of some numbers, if there is one
Heads(seq) == {seq[i] : i \in First(DOMAIN seq)}  \* the first of a sequence, if there is one
Drop(seq, S) == SelectSeq(seq, LAMBDA x : x \notin S)
Unfinished == {t \in DOMAIN tasks : tasks[t].state \notin Final}

\* A plan of the scheduler: requests that `ended`, slots that new requests were `given` to write, the batch's
\* `order`, `rows` (request -> set of <<position, slot>>), `hits` (request -> its prefix's slots in order), and
\* the `keys` that the model puts out. A block may be given on one step before its request is reported as ended.
NoPlan == [ended |-> {}, given |-> {}, order |-> <<>>, rows |-> [r \in Requests |-> {}],
           hits |-> [r \in Requests |-> <<>>], keys |-> {}]
NoStep == [n |-> 0, plan |-> NoPlan]

SlotsOf(plan, r) == {x[2] : x \in plan.rows[r]}
PlanSlots(plan) == UNION {SlotsOf(plan, r) : r \in Requests}
PlanCells(plan) == PlanSlots(plan) \X plan.keys
RequestAt(plan, s) == CHOOSE r \in Requests : s \in SlotsOf(plan, r)
PositionAt(plan, s) == (CHOOSE x \in plan.rows[RequestAt(plan, s)] : x[2] = s)[1]
PlaceOf(plan, r) == CHOOSE i \in 1..Len(plan.order) : plan.order[i] = r
Hits(plan) == {r \in Requests : plan.hits[r] # <<>>}

\* The generation as which a request's rows are saved: a request that is not live begins a new one.
NewOnes(plan, n) == {i \in 1..n : liveGen[plan.order[i]] = NoTenant}
Generation(plan, r) == IF liveGen[r] # NoTenant THEN liveGen[r]
                       ELSE gens + Cardinality(NewOnes(plan, PlaceOf(plan, r)))
Identity(plan, c) == <<Generation(plan, RequestAt(plan, c[1])), PositionAt(plan, c[1]), c[2]>>

\* What a forward of the plan leaves in the live buffers.
Output(plan) == [c \in Cells |-> IF c \in PlanCells(plan) THEN Identity(plan, c) ELSE Garbage]

Pending == {h \in DOMAIN reads : reads[h].st \in {"pending", "fetching"}}
Landed(p) == onWay[p] = <<>>
Records == completed # <<>> \/ failures # <<>>
Registered(T) == T \cap DOMAIN tasks
MayEnter(t) == lock.state = t \/ (Free("state") /\ ~Records)

\* The engine has nothing left to wait for before it reserves bytes and claims a page.
CaughtUp ==
    \/ eng.pc = "joined"
    \/ eng.pc = "forward" /\ Registered(eng.last) = {} /\ ~(failed /\ eng.last # {})
    \/ eng.pc = "flush" /\ eng.up = {} /\ Registered(eng.wait) = {} /\ ~Records
    \/ eng.pc = "flushed" /\ ~Records
Late(plan) == PlanSlots(plan) \X (plan.keys \cap Deferred)
Now(plan) == PlanSlots(plan) \X (plan.keys \cap Immediate)
=============================================================================
