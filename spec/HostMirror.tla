----------------------------- MODULE HostMirror ------------------------------
(* The protocol of the host mirror, and what must hold of it. Start at `Next`: each line is one function of   *)
(* the worker or of the mirror, and one event of a trace, or the device. What a function queues on a stream   *)
(* happens later, in that stream's order and in no other: ComputeRuns and CopyRuns are the device. Bounds and *)
(* schedules are in the models.                                                                               *)
EXTENDS MirrorRows

Next ==
    \/ ImportRows
    \/ \E r \in Ranks : ForgetState(r)
    \/ \E r \in Ranks : AwaitWrites(r)
    \/ Meet
    \/ \E r \in Ranks : CopyHostBlocks(r)
    \/ \E r \in Ranks : StartTransfers(r)
    \/ \E r \in Ranks : InvalidateBlocks(r)
    \/ \E r \in Ranks, l \in Layers : Write(r, l)
    \/ \E r \in Ranks : Select(r)
    \/ \E r \in Ranks : Gather(r)
    \/ \E r \in Ranks : FinishTarget(r)
    \/ \E r \in Ranks : FinishDrafts(r)
    \/ \E r \in Ranks : FinishStep(r)
    \/ \E r \in Ranks : TakeCompletedTransfers(r)
    \/ \E r \in Ranks : Shutdown(r)
    \* ComputeRuns and CopyRuns are the environment's
    \/ \E r \in Ranks : ComputeRuns(r)
    \/ \E r \in Ranks : CopyRuns(r)

Spec == Init /\ [][Next]_vars

\* The device goes on, and so do runners in the middle of a step. Idle steps follow the last one.
Fairness ==
    /\ \A r \in Ranks : WF_vars(ComputeRuns(r)) /\ WF_vars(CopyRuns(r))
    /\ \A r \in Ranks : WF_vars(AwaitWrites(r) \/ CopyHostBlocks(r) \/ StartTransfers(r) \/ InvalidateBlocks(r)
                                \/ (\E l \in Layers : Write(r, l)) \/ Select(r) \/ Gather(r) \/ FinishTarget(r)
                                \/ FinishDrafts(r) \/ FinishStep(r))
    /\ \A r \in Ranks : WF_vars(TakeCompletedTransfers(r))
    /\ WF_vars(Meet) /\ WF_vars(ImportRows)
LiveSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
(* What must hold.                                                                                           *)

\* One rank writes the pool.
OneHostWriter == wrote \subseteq {Writer}

\* A copy of a host block reads no row that is still on its way.
HostCopyAfterWrites == "early host copy" \notin faults

\* When a transfer to the host ends, each accepted row of its page is there in every layer, the draft's too.
Moved == {t.id : t \in UNION {Range(agenda[k].moves) : k \in DOMAIN agenda}}
Durable(i) == \A o \in Offsets : wanted[i].rows[o] # Nothing =>
                  \A l \in Layers : host[wanted[i].hb][o][l] = wanted[i].rows[o]
CleanMeansDurable == [][\A i \in (acked' \ acked) \cap Moved : i \in DOMAIN wanted /\ Durable(i)]_vars

\* Where rows are mirrored as they are written, and no copy is on its way, each accepted row is on the host.
Rests(r) == compute[r] = <<>> /\ copies[r] = <<>> /\ pc[r] = "idle"
EveryRowMirrored ==
    Eager /\ Rests(Writer) => \A b \in HostBlocks : \A o \in Offsets :
        truth[b][o] # Nothing => \A l \in Layers : host[b][o][l] = truth[b][o]

\* No rejected row lies on the host, in any layer.
AcceptedRowsOnly == \A b \in HostBlocks : \A o \in Offsets : \A l \in Layers : host[b][o][l] \notin rejected

\* An event that a step records is not one that some rank has yet to wait for.
EventNotReused ==
    [][\A r \in Ranks : \A e \in {"even", "odd"} : issued'[r][e] # issued[r][e] =>
          \A q \in Ranks : at[q] > at[r] \/ (at[q] = at[r] /\ pc[q] # "meeting")]_vars

\* When a rank's forward stream is through, its pages hold the rows that the order of the program put there.
RestoreKeepsRows ==
    \A r \in Ranks : compute[r] = <<>> /\ pc[r] = "idle" =>
        \A b \in DevBlocks : \A o \in Offsets : placed[r][b][o] # Nothing => dev[r][b][o]["target"] = placed[r][b][o]

\* Attention gets no row of an earlier tenant of a host slot, and no row that was written over: neither where it uses
\* one, nor once all that it uses has been queued and the forward stream is through.
NoRecycledHotRow ==
    /\ "stale hot row" \notin faults
    /\ \A r \in Ranks : pc[r] = "gathered" /\ compute[r] = <<>> =>
          \A h \in Range(Now(r).hot) : Shows(hot[r][<<h[1], h[2]>>], <<h[3], h[4]>>)

\* A row of a layer is handed to the copy stream once.
MirroredOnce == "mirrored twice" \notin faults

\* Nothing is queued that would touch memory that is not registered.
Touches(x) == x[1] \in {"copy", "restore", "fetch"}
RegisteredWhileUsed ==
    registered \/ \A r \in Ranks : \A x \in Range(copies[r]) \cup Range(compute[r]) : ~Touches(x)

\* What a rank's worker carries belongs to where it is in its step: what is to be fetched to a selection, transfers that
\* wait for rows to a step that is under way; hot rows are forgotten before rows are written or selected; and what a
\* phase handed to the copy stream is waited for at its end.
WorkerAgrees == \A r \in Ranks :
    /\ missing[r] # {} => pc[r] \in {"selected", "closed"}
    /\ after[r] # <<>> => pc[r] \in {"started", "written", "selected", "gathered", "target", "drafted", "drafts", "closed"}
    /\ pc[r] \in {"written", "selected"} => stale[r] = {}
    /\ dirty[r] => pc[r] \notin {"idle", "target", "drafts"}
    /\ pc[r] = "selected" => \A h \in Range(Now(r).hot) : <<h[1], h[2]>> \in table[r]

\* Nothing is registered any more when the last rank has closed.
AllReleased == (\A r \in Ranks : pc[r] = "closed") => ~registered

\* Each transfer that a step asked for is acknowledged, also where only idle steps follow.
Asked == UNION {{t.id : t \in Range(agenda[k].moves) \cup Range(agenda[k].restores)} : k \in DOMAIN agenda}
EveryTransferEnds == <>(Asked \subseteq taken)
=============================================================================
