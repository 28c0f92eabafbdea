------------------------------ MODULE Agreement ------------------------------
(* How the protocol's tables, locks and threads agree with one another. A reader sees nothing of this at once: it is *)
(* what keeps one part of the cache from acting on what another has already left.                            *)
EXTENDS PrefixCache

-----------------------------------------------------------------------------
(* The state lock.                                                                                         *)

\* What shows that a step is the thread's own.
Acts(t) == CASE t = "engine" -> <<eng, begins, epoch>>' # <<eng, begins, epoch>>
             [] t = "builder" -> bld' # bld
             [] OTHER -> com' # com

\* From its drain to the action that this belongs to, a thread has the state lock: nobody else changes what it guards,
\* and the action lets go of it.
OneInSection ==
    [][ LET who == lock["state"]
        IN  /\ who # Nobody => lock'["state"] \in {who, Nobody}
            /\ who # Nobody /\ stateVars' # stateVars => lock'["state"] = Nobody /\ Acts(who)
            /\ Records /\ ~Records' => lock'["state"] # Nobody \/ eng'.pc # eng.pc \/ failed' ]_vars

-----------------------------------------------------------------------------
(* The tables.                                                                                             *)

\* The task that will write a cell is there, and has it; what is recorded is there, until the record is drained.
WritersAgree ==
    /\ \A c \in Cells : LET t == writer[c] IN
        t # NoTask => failed \/ (t \in DOMAIN tasks /\ c \in tasks[t].rows \ tasks[t].lost)
    /\ \A t \in Range(completed) \cup Range(failures) : t \in DOMAIN tasks

\* Each task is somebody's who will bring it to its end: an open one takes more rows, any other is about to be
\* escalated, is queued, or is a writer's.
Held(t) == CASE tasks[t].state = "PENDING" -> t \in Range(openTask) \cup eng.up
             [] tasks[t].state = "QUEUED" -> t \in Range(hi \o lo) \/ (eng.pc = "published" /\ t \in eng.last)
             [] OTHER -> \E w \in Writers : t \in com[w].tids
NoOrphan ==
    /\ \A t \in Unfinished : Held(t)
    /\ failed \/ closed \/ \A r \in Requests : LET t == openTask[r] IN
        t # NoTask => t \in DOMAIN tasks /\ tasks[t].state = "PENDING" /\ tasks[t].req = r /\ t \notin eng.up

\* A write has failed, whether that was seen or not.
SomeFailed == failed \/ \E t \in DOMAIN tasks : tasks[t].state = "FAILED"

\* A step that was begun: it is the last one, its requests that ended are not live, the slots that it gives away have no
\* tenant, and its hits are planned.
BegunAgrees ==
    LET plan == begun.plan IN
    IF begun = NoStep THEN closed \/ eng.pc \in {"idle", "published", "stopped"}
    ELSE /\ begun.n = begins /\ (eng.pc = "idle" => plan.order = <<>> \/ SomeFailed)
         /\ \A r \in plan.ended : liveGen[r] = NoTenant /\ openTask[r] = NoTask
         /\ \A s \in plan.given : tenant[s] = NoTenant
         /\ \A r \in Hits(plan) : \A k \in known : <<begun.n, r, k>> \in DOMAIN reads

\* A step that was saved: its requests are live, and the tenants of what it wrote; its keys are known.
SavedAgrees ==
    [][ saved' # saved => \A r \in Range(begun.plan.order) :
            /\ liveGen'[r] # NoTenant /\ \A s \in SlotsOf(begun.plan, r) : tenant'[s] = liveGen'[r]
            /\ begun.plan.keys \subseteq known' ]_vars

\* After a reset nothing is had that was there before, and who planned on it sees that.
ResetForgets ==
    [][ epoch' # epoch =>
            /\ \A s \in Slots : tenant'[s] = NoTenant
            /\ \A c \in Slots \X known : version'[c] > version[c]
            /\ \A r \in Requests : liveGen'[r] = NoTenant \/ liveGen'[r] > gens ]_vars

\* A step is begun or saved, and the cache reset, by who has drained every record. Once a shutdown has begun nothing is
\* begun, saved or taken any more, and no page is claimed; nor is the cache reset then, or after a failure.
EntryGuarded ==
    [][ /\ begins' # begins \/ saved' # saved \/ epoch' # epoch => lock["state"] = "engine" \/ ~Records
        /\ failed \/ closed => epoch' = epoch
        /\ closed => /\ closed' /\ begins' = begins /\ saved' = saved
                     /\ bld'.pc \in {"copying", "leaving"} => bld.pc = bld'.pc
                     /\ eng'.pc = "claimed" => eng.pc = "claimed" ]_vars

\* Each step that is begun was asked for. A wait for a page has a number of its own, and ends with the page; or by a
\* shutdown, or by its bound where saves can fail.
StepsCounted ==
    [][ /\ begins' # begins => agenda' # agenda
        /\ stepIds' # stepIds => eng.pc # "page wait" /\ eng'.pc = "page wait"
        /\ eng.pc = "page wait" /\ eng'.pc # "page wait" => eng'.pc = "claimed" \/ closed \/ CanAbort ]_vars

-----------------------------------------------------------------------------
(* The threads.                                                                                            *)

\* What a thread carries belongs to what it is doing. When all has ended nothing is left.
ThreadsAgree ==
    /\ eng.page # NoPage <=> eng.pc \in {"claimed", "frozen"}
    /\ eng.pc \in {"joined", "flushed"} => eng.wait = {}
    /\ eng.pc = "flush" => eng.wait # {} /\ eng.up \subseteq eng.wait
    /\ com["committer"].todo # {} => At("committer", "writing")
    /\ com["closer"].todo # {} => At("closer", "ended")
    /\ \A w \in Writers : com[w].tids # {} => com[w].pc \in {"copying", "ready", "writing", "failed", "recorded"}
    /\ \A t \in Readers : rdr[t].pc # "idle" => rdr[t].hit \in DOMAIN reads
    /\ \A t \in Readers : rdr[t].pc # "idle" /\ reads[rdr[t].hit].try = rdr[t].try =>
        /\ reads[rdr[t].hit].st \in {"fetching", "over"}
        /\ rdr[t].pc = "join" => \A i \in DOMAIN rdr[t].buf : rdr[t].buf[i] \in {Nothing, reads[rdr[t].hit].kept[i]}
        /\ t = "builder" => reads[rdr[t].hit].step = bld.step
    /\ At("closer", "ended") =>
        begun = NoStep /\ DOMAIN steps = {} /\ \A r \in Requests : liveGen[r] = NoTenant /\ openTask[r] = NoTask

\* A shutdown fails nothing that is queued, unless the committer is stuck with a copy.
ShutdownWrites ==
    [][ CanStall \/ \A t \in Range(hi \o lo) : t \in DOMAIN tasks' => tasks'[t].state # "FAILED" ]_vars

\* When a shutdown has ended, every record was drained, the prefetch thread rests, and the committer does, too, unless it
\* is stuck.
EndAgrees ==
    At("closer", "ended") => /\ ~Records /\ com["committer"].pc \in {"idle", "copying"}
                             /\ "prefetch" \in Readers => rdr["prefetch"].pc = "idle"

\* Who plans a read gets it: it raises where a row that must be there is absent, or where something went wrong.
WentWrong(h) == \/ CanDrop \/ CanAbort \/ CanStall \/ SomeFailed \/ closed
                \/ epoch # reads[h].epoch
                \/ h[1] = begun.n /\ begins' # begins
RaisesForCause ==
    [][ \A h \in Pending : reads'[h].st = "over" =>
        \/ AbsentHidden(h) \/ WentWrong(h)
        \/ \E g \in DOMAIN reads : reads[g].step = reads[h].step /\ reads[g].st = "over" ]_vars
=============================================================================
