-------------------------- MODULE MirrorVocabulary ---------------------------
(* The host mirror's words: what a scheduler asks for, the memory, the streams with their events, each rank's worker, *)
(* and the ghosts that say what should be. Actions are in the modules that extend this one.                           *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Ranks, Writer,         \* the processes that share the pool, and the one that writes it
    HostBlocks, DevBlocks, \* pages of the pool, and of each rank's device
    Offsets,               \* rows of a page
    Schedules,             \* what a scheduler may ask for: sequences of steps, see `IdleStep`
    Eager,                 \* deferred rows are mirrored as they are written; otherwise their pages are moved
    CanShutdown            \* the mirror may be shut down in any step

Layers == {"target", "draft"}
Nothing == <<>>            \* no row, yet or any more; a row is <<request generation, position, step>>
Blank(B) == [b \in B |-> [o \in Offsets |-> [l \in Layers |-> Nothing]]]
NoRows(B) == [b \in B |-> [o \in Offsets |-> Nothing]]
Range(s) == {s[i] : i \in DOMAIN s}

\* What one step asks for: blocks copied <<from, to>>, blocks with a new tenant, pages to restore and to move
\* [id, hb, db, after], rows [db, hb, off, gen, pos, ok] and whether some may be rejected, rows <<hb, off, gen, pos>>
\* that attention selects off the device, rows <<hb, off, gen, pos>> that were computed elsewhere.
IdleStep == [copies |-> <<>>, given |-> {}, restores |-> <<>>, moves |-> <<>>, rows |-> <<>>, deferred |-> FALSE,
             hot |-> <<>>, imports |-> <<>>]

VARIABLES
    (* memory *)
    host,      \* the pool: block, offset, layer -> row
    dev,       \* each rank's pages likewise
    hot,       \* each rank's hot rows: what was fetched of a host slot <<hb, off>>
    registered,
    (* streams and events *)
    compute,   \* what is queued on the stream of each rank's forwards
    copies,    \* what is queued on its copy stream
    issued,    \* how often each event was recorded by a rank: two for host writes, one for written rows
    reached,   \* the last of these records that its stream got to
    acked,     \* transfers whose end the writer's streams got to
    (* each rank's worker *)
    pc, at,    \* where it is in which step
    current,   \* the event that this step's host writes record
    rows,      \* row mirrors of the step
    after,     \* transfers that wait for the step's rows
    table,     \* host slots that the rank believes to be hot
    stale,     \* host blocks with a new tenant whose hot rows are still to be forgotten
    missing,   \* host slots that are selected and have to be fetched
    dirty,     \* the phase handed something to the copy stream
    agenda,
    imported,  \* the last step whose imports are done
    taken,     \* transfers that were acknowledged to the scheduler
    (* what should be, and what went wrong *)
    truth,     \* accepted row of each host slot
    placed,    \* row that program order puts on each rank's device
    wanted,    \* rows that a transfer to the host stands for, by its id
    rejected,  \* rows that were rejected
    wrote,     \* ranks that wrote the pool
    sent,      \* <<step, layer, host slot>> handed to the copy stream
    faults

memory == <<host, dev, hot, registered>>
streams == <<compute, copies, issued, reached, acked>>
hotness == <<table, stale, missing>>
worker == <<pc, at, current, rows, after, hotness, dirty, agenda, imported, taken>>
ghosts == <<truth, placed, wanted, rejected, wrote, sent, faults>>
vars == <<memory, streams, worker, ghosts>>

Events == {"even", "odd", "ready"}
Other(e) == IF e = "even" THEN "odd" ELSE "even"
StepAt(k) == IF k \in DOMAIN agenda THEN agenda[k] ELSE IdleStep
Now(r) == StepAt(at[r])
Shared == Cardinality(Ranks) > 1

TypeOK ==
    /\ pc \in [Ranks -> {"idle", "meeting", "met", "copied", "started", "written", "selected", "gathered", "target",
                          "drafted", "drafts", "closed"}]
    /\ at \in [Ranks -> 0..(Len(agenda) + 1)] /\ current \in [Ranks -> {"even", "odd"}]
    /\ \A r \in Ranks : \A e \in Events : reached[r][e] <= issued[r][e]
    /\ taken \subseteq acked /\ registered \in BOOLEAN /\ dirty \in [Ranks -> BOOLEAN]

Init ==
    /\ host = Blank(HostBlocks) /\ dev = [r \in Ranks |-> Blank(DevBlocks)]
    /\ hot = [r \in Ranks |-> [s \in HostBlocks \X Offsets |-> Nothing]] /\ registered = TRUE
    /\ compute = [r \in Ranks |-> <<>>] /\ copies = [r \in Ranks |-> <<>>]
    /\ issued = [r \in Ranks |-> [e \in Events |-> 0]] /\ reached = issued /\ acked = {}
    /\ pc = [r \in Ranks |-> "idle"] /\ at = [r \in Ranks |-> 0] /\ current = [r \in Ranks |-> "odd"]
    /\ rows = [r \in Ranks |-> <<>>] /\ after = rows /\ table = [r \in Ranks |-> {}]
    /\ stale = table /\ missing = table /\ dirty = [r \in Ranks |-> FALSE]
    /\ agenda \in Schedules /\ imported = 0 /\ taken = {}
    /\ truth = NoRows(HostBlocks) /\ placed = [r \in Ranks |-> NoRows(DevBlocks)]
    /\ wanted = <<>> /\ rejected = {} /\ wrote = {} /\ sent = {} /\ faults = {}
=============================================================================
