----------------------------- MODULE CacheState -----------------------------
(* The words of the protocol: constants, variables by the lock that guards them, the initial state.         *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Requests, Slots, Pages,
    ImmediateKeys,  \* written at each step, through a staging page
    DeferredKeys,   \* written when their request ends or the byte budget presses, from clones
    Budget,         \* bytes of clones; a row of a clone is one byte
    Batches(_),     \* what the scheduler may hand out as the n-th step, see README.md
    None, Torn      \* no value; a pool row that is being written

Keys == ImmediateKeys \cup DeferredKeys
Threads == {"engine", "builder", "prefetch", "committer"}
Readers == {"builder", "prefetch"}

VARIABLES
    lockHolder,     \* who holds each lock
    (* guarded by the state lock *)
    tenant,         \* slot -> generation <<request, number>> that claimed it last
    version,        \* key, slot -> how often it was claimed
    status,         \* key, slot -> ABSENT, IN_TRANSIT or COMMITTED
    writer,         \* key, slot -> the task that will land its row
    tags,           \* key, slot -> identity of the row that was claimed last (nothing decides by it)
    generation,     \* request -> number of its generations so far
    live,           \* requests that were published and have not ended
    open,           \* request -> its deferred task that takes its next rows
    stepNo,         \* number of steps begun
    begun,          \* the step that was begun and not published
    steps,          \* published and not consumed: step -> page and reads
    lastStep,       \* immediate tasks of the step published last
    consumed,       \* step -> how often it was consumed
    reads,          \* planned reads that are not over
    delivery,       \* the read that was delivered last
    lost,           \* a failed write was drained
    closed,         \* shut down
    epoch,          \* number of resets
    (* guarded by the task lock *)
    tasks,          \* write tasks, until their record is drained
    hi, lo,         \* queues of the committer
    completed, failed,  \* records that were not drained
    charged,        \* bytes charged against the budget
    tickets,        \* step -> bytes of its clones and the tasks that hold them
    (* guarded by the page lock *)
    holders,        \* page -> who keeps it busy
    (* data, which copies move between actions *)
    pool,           \* key, slot -> identity of the row that lies in the pool
    page,           \* page -> step, what was given for it, what has landed on it
    liveBuf,        \* the live output buffers: whose step's rows are in them
    clone,          \* the clones of the deferred rows of the step being saved
    (* threads *)
    pc,             \* where each thread is
    waits,          \* the tasks that a thread waits for, and whether one of them had failed when it ended
    eng,            \* engine: page claimed, bytes reserved, tasks to escalate, holds to give up
    taken,          \* builder: the step it has taken or discarded
    fetch,          \* readers: the read being fetched, rows gathered
    job             \* committer: its tasks, rows on their way to the pool

slotVars == <<tenant, version, status, writer, tags>>
requestVars == <<generation, live, open>>
stepVars == <<stepNo, begun, steps, lastStep, consumed>>
readVars == <<reads, delivery>>
endVars == <<lost, closed, epoch>>
stateVars == <<slotVars, requestVars, stepVars, readVars, endVars>>
queueVars == <<hi, lo>>
recordVars == <<completed, failed>>
budgetVars == <<charged, tickets>>
taskVars == <<tasks, queueVars, recordVars, budgetVars>>
dataVars == <<pool, page, liveBuf, clone>>
localVars == <<waits, eng, taken, fetch, job>>
vars == <<lockHolder, stateVars, taskVars, holders, dataVars, pc, localVars>>

NoTag == [k \in Keys |-> [s \in Slots |-> None]]
NoWait == [tids |-> {}, failed |-> FALSE]
NoEng == [page |-> None, bytes |-> 0, raise |-> {}, leave |-> <<>>]

Init ==
    /\ lockHolder = [l \in {"state", "task", "page"} |-> None]
    /\ tenant = [s \in Slots |-> None] /\ version = [k \in Keys |-> [s \in Slots |-> 0]]
    /\ status = [k \in Keys |-> [s \in Slots |-> "ABSENT"]] /\ writer = NoTag /\ tags = NoTag
    /\ generation = [r \in Requests |-> 0] /\ live = {} /\ open = [r \in Requests |-> None]
    /\ stepNo = 0 /\ begun = None /\ steps = <<>> /\ lastStep = {} /\ consumed = <<>>
    /\ reads = <<>> /\ delivery = None /\ lost = FALSE /\ closed = FALSE /\ epoch = 0
    /\ tasks = <<>> /\ hi = <<>> /\ lo = <<>> /\ completed = <<>> /\ failed = <<>>
    /\ charged = 0 /\ tickets = <<>> /\ holders = [p \in Pages |-> {}]
    /\ pool = NoTag /\ page = [p \in Pages |-> None]
    /\ liveBuf = [step |-> 0, rows |-> <<>>] /\ clone = <<>>
    /\ pc = [t \in Threads |-> "idle"] /\ waits = [t \in Threads |-> NoWait] /\ eng = NoEng /\ taken = None
    /\ fetch = [t \in Readers |-> None] /\ job = [tids |-> {}, content |-> <<>>]

(* ------------------------------ small words ------------------------------ *)
Range(f) == {f[x] : x \in DOMAIN f}
Only(f, S) == [x \in DOMAIN f \cap S |-> f[x]]
Without(f, S) == [x \in DOMAIN f \ S |-> f[x]]
Is(seq, S) == SelectSeq(seq, LAMBDA x : x \in S)
RECURSIVE AsSeq(_), Sum(_, _)
AsSeq(S) == IF S = {} THEN <<>> ELSE LET x == CHOOSE y \in S : TRUE IN <<x>> \o AsSeq(S \ {x})
Sum(f, S) == IF S = {} THEN 0 ELSE LET x == CHOOSE y \in S : TRUE IN f[x] + Sum(f, S \ {x})

At(t, place) == pc[t] = place
Go(t, place) == pc' = [pc EXCEPT ![t] = place]
Free(lock) == lockHolder[lock] = None
Inside(t) == lockHolder["state"] = t
Leave(lock) == lockHolder' = [lockHolder EXCEPT ![lock] = None]

Final == {"WRITTEN", "FAILED"}
Unfinished == {t \in DOMAIN tasks : tasks[t].state \notin Final}
SetState(T, s) == [t \in DOMAIN tasks |-> IF t \in T THEN [tasks[t] EXCEPT !.state = s] ELSE tasks[t]]
Holding(T) == UNION {{h \in holders[p] : h[1] = "task" /\ h[2] \in T} : p \in Pages}

(* Tasks leave their tickets; what nobody holds any more is no longer charged. *)
ReleaseTickets(T) ==
    LET rest == [n \in DOMAIN tickets |-> [tickets[n] EXCEPT !.holders = @ \ T]]
        over == {n \in DOMAIN rest : rest[n].holders = {}}
    IN  /\ tickets' = Without(rest, over)
        /\ charged' = charged - Sum([n \in over |-> rest[n].bytes], over)

=============================================================================
