----------------------------- MODULE MirrorSteps -----------------------------
(* A step of a rank's worker but for its layers' rows: imports and requests between two steps, its begin, copies of *)
(* host blocks, transfers of pages, its end, the transfers that have ended, the mirror's end.                       *)
EXTENDS MirrorStreams

Landed(r, e) == reached[r][e] = issued[r][e]

RECURSIVE Imported(_, _, _)
Imported(f, xs, k) ==
    IF xs = <<>> THEN f
    ELSE LET x == Head(xs) IN
         Imported([f EXCEPT ![x[1]][x[2]] = [l \in Layers |-> <<x[3], x[4], k>>]], Tail(xs), k)
RECURSIVE Known(_, _, _)
Known(f, xs, k) ==
    IF xs = <<>> THEN f ELSE Known([f EXCEPT ![Head(xs)[1]][Head(xs)[2]] = <<Head(xs)[3], Head(xs)[4], k>>], Tail(xs), k)

\* Between two steps. A step without rows need not be finished.
Between(r) == pc[r] = "idle" \/ (pc[r] = "started" /\ Now(r).rows = <<>> /\ Now(r).hot = <<>> /\ after[r] = <<>>)

\* Rows that were computed elsewhere come into the pool, before the step that shows them: all ranks are there or meet
\* already, and what they queued for the host has landed. The writer does it.
ImportRows ==
    LET k == at[Writer] + 1
        new == StepAt(k).imports
    IN  /\ new # <<>> /\ imported < k
        /\ Between(Writer) /\ \A r \in Ranks : Landed(r, current[r])
        /\ \A r \in Ranks \ {Writer} : Between(r) \/ pc[r] = "meeting"
        /\ imported' = k
        /\ host' = Imported(host, new, k) /\ truth' = Known(truth, new, k)
        /\ wrote' = wrote \cup {Writer}
    /\ UNCHANGED <<dev, hot, registered, streams, pc, at, current, rows, after, hotness, dirty, agenda, taken, placed,
                   wanted, rejected, sent, faults>>

\* A request comes to the rank: no hot row of an earlier one is its.
ForgetState(r) ==
    /\ Between(r) /\ table[r] # {}
    /\ table' = [table EXCEPT ![r] = {}]
    /\ UNCHANGED <<memory, streams, pc, at, current, rows, after, stale, missing, dirty, agenda, imported, taken, ghosts>>

\* The step begins: the forward stream waits for the host writes of the last one. Ranks that share a pool meet.
AwaitWrites(r) ==
    /\ Between(r) /\ at[r] <= Len(agenda) /\ (r # Writer \/ StepAt(at[r] + 1).imports = <<>> \/ imported > at[r])
    /\ pc' = [pc EXCEPT ![r] = IF Shared THEN "meeting" ELSE "met"]
    /\ at' = [at EXCEPT ![r] = @ + 1]
    /\ compute' = [compute EXCEPT ![r] = Append(@, Wait(r, current[r]))]
    /\ IF Shared THEN UNCHANGED current ELSE current' = [current EXCEPT ![r] = Other(@)]
    /\ UNCHANGED <<memory, copies, issued, reached, acked, rows, after, hotness, dirty, agenda, imported, taken, ghosts>>

\* All ranks have come, each behind its own last step: what the writer wrote has landed, and nobody reads any more.
Meet ==
    /\ \A r \in Ranks : pc[r] = "meeting" /\ Landed(r, current[r])
    /\ pc' = [r \in Ranks |-> "met"]
    /\ current' = [r \in Ranks |-> Other(current[r])]
    /\ UNCHANGED <<memory, streams, at, rows, after, hotness, dirty, agenda, imported, taken, ghosts>>

Pending(b) == \E i \in DOMAIN copies[Writer] : copies[Writer][i][1] = "copy" /\ copies[Writer][i][4] = b
RECURSIVE Copied(_, _)
Copied(f, cs) == IF cs = <<>> THEN f ELSE [Copied(f, SubSeq(cs, 1, Len(cs) - 1)) EXCEPT ![cs[Len(cs)][2]] = f[cs[Len(cs)][1]]]

\* The writer copies host blocks once the last step's host writes have landed; the other ranks wait for it, up to their
\* bound where it has closed.
CopyHostBlocks(r) ==
    /\ pc[r] = "met"
    /\ r = Writer \/ Now(r).copies = <<>> \/ pc[Writer] \notin {"met", "closed"}
    /\ pc' = [pc EXCEPT ![r] = "copied"]
    /\ IF r = Writer /\ Now(r).copies # <<>>
       THEN /\ Landed(r, Other(current[r]))
            /\ host' = Copied(host, Now(r).copies) /\ truth' = Copied(truth, Now(r).copies)
            /\ faults' = IF \E c \in Range(Now(r).copies) : Pending(c[1]) THEN faults \cup {"early host copy"} ELSE faults
            /\ wrote' = wrote \cup {r}
       ELSE UNCHANGED <<host, truth, faults, wrote>>
    /\ UNCHANGED <<dev, hot, registered, streams, at, current, rows, after, hotness, dirty, agenda, imported, taken,
                   placed, wanted, rejected, sent>>

\* Blocks with a new tenant hold none of its rows yet, unless they were copied or imported.
Fresh(f) == LET filled == {c[2] : c \in Range(Now(Writer).copies)} \cup {x[1] : x \in Range(Now(Writer).imports)}
            IN  [b \in HostBlocks |-> IF b \in Now(Writer).given \ filled THEN [o \in Offsets |-> Nothing] ELSE f[b]]
RECURSIVE Restored(_, _, _)
Restored(f, ts, from) ==
    IF ts = <<>> THEN f ELSE Restored([f EXCEPT ![Head(ts).db] = from[Head(ts).hb]], Tail(ts), from)
RowOf(r, x) == <<x.gen, x.pos, at[r]>>
Accepted(rs) == SelectSeq(rs, LAMBDA x : x.ok)
RECURSIVE Stand(_, _, _)
Stand(r, f, rs) ==
    IF rs = <<>> THEN f ELSE Stand(r, [f EXCEPT ![Head(rs).hb][Head(rs).off] = RowOf(r, Head(rs))], Tail(rs))
Wants(ts, f) == [i \in {t.id : t \in Range(ts)} |->
                    LET t == CHOOSE x \in Range(ts) : x.id = i IN [hb |-> t.hb, rows |-> f[t.hb]]]
Merge(f, g) == [i \in DOMAIN f \cup DOMAIN g |-> IF i \in DOMAIN g THEN g[i] ELSE f[i]]

\* Pages come back on the forward stream; pages that are full already go to the host. The step has its own rows, or none.
\* Its event is recorded also where nothing else follows, so that whoever waits for it waits for the steps before.
StartTransfers(r) ==
    /\ pc[r] = "copied"
    /\ LET s == Now(r)
           early == SelectSeq(s.moves, LAMBDA t : ~t.after)
           restores == Each(s.restores, LAMBDA t : <<"restore", t.hb, t.db>>)
           ends == IF r = Writer THEN Ends(s.restores) ELSE <<>>
       IN  /\ pc' = [pc EXCEPT ![r] = "started"]
           /\ rows' = [rows EXCEPT ![r] = s.rows]
           /\ after' = [after EXCEPT ![r] = SelectSeq(s.moves, LAMBDA t : t.after)]
           /\ stale' = [stale EXCEPT ![r] = @ \cup s.given]
           /\ IF WritesPages(r, early)
              THEN Submit(r, restores \o ends, Moves(early), Ends(early), FALSE)
              ELSE /\ compute' = [compute EXCEPT ![r] = @ \o restores \o ends \o <<Recorded(r, current[r])>>]
                   /\ copies' = [copies EXCEPT ![r] = IF r = Writer THEN @ \o Ends(early) ELSE @]
                   /\ issued' = [issued EXCEPT ![r][current[r]] = @ + 1]
                   /\ dirty' = [dirty EXCEPT ![r] = FALSE]
           /\ placed' = [placed EXCEPT ![r] = Restored(@, s.restores, truth)]
           /\ truth' = IF r = Writer THEN Fresh(truth) ELSE truth
           /\ wanted' = IF r # Writer THEN wanted
                        ELSE Merge(wanted, Merge(Wants(early, truth),
                                                 Wants(after'[r], Stand(r, Fresh(truth), Accepted(s.rows)))))
    /\ UNCHANGED <<memory, reached, acked, at, current, table, missing, agenda, imported, taken, rejected, wrote, sent,
                   faults>>

-----------------------------------------------------------------------------
(* Its end, and the mirror's.                                                   *)

\* The transfers that waited for the step's rows, of every layer.
FinishStep(r) ==
    /\ pc[r] = "drafts" \/ (pc[r] = "target" /\ Now(r).rows = <<>>)
    /\ pc' = [pc EXCEPT ![r] = "idle"]
    /\ after' = [after EXCEPT ![r] = <<>>]
    /\ CASE WritesPages(r, after[r]) -> Submit(r, <<>>, Moves(after[r]), Ends(after[r]), TRUE)
         [] after[r] = <<>> -> UNCHANGED <<compute, copies, issued, dirty>>
         [] OTHER -> Pass(r, IF r = Writer THEN Ends(after[r]) ELSE <<>>)
    /\ UNCHANGED <<memory, reached, acked, at, current, rows, hotness, agenda, imported, taken, ghosts>>

\* The scheduler hears of transfers that have ended: at any time, so also on idle steps.
TakeCompletedTransfers(r) ==
    /\ pc[r] # "closed" /\ r = Writer /\ taken # acked
    /\ taken' = IF r = Writer THEN acked ELSE taken
    /\ UNCHANGED <<memory, streams, pc, at, current, rows, after, hotness, dirty, agenda, imported, ghosts>>

\* Memory is given back once nothing that reads or writes it is queued on a stream of any rank.
Shutdown(r) ==
    /\ CanShutdown /\ pc[r] # "closed"
    /\ compute[r] = <<>> /\ copies[r] = <<>>
    /\ pc' = [pc EXCEPT ![r] = "closed"]
    /\ registered' = (registered /\ \E q \in Ranks \ {r} : pc[q] # "closed")
    /\ UNCHANGED <<host, dev, hot, streams, at, current, rows, after, hotness, dirty, agenda, imported, taken, ghosts>>
=============================================================================
