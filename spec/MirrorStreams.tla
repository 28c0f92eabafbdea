---------------------------- MODULE MirrorStreams ----------------------------
(* What was queued on a stream happens later, in that stream's order and in no other; and how a worker queues. *)
EXTENDS MirrorVocabulary

(* Streams. An entry of a queue is <<what, ...>>. A wait is for the record that was the last when it was queued. *)

Heads(queue) == {queue[i] : i \in DOMAIN queue \cap {1}}
Shows(row, asked) == row # Nothing /\ <<row[1], row[2]>> = asked
Runnable(r, x) == IF x[1] = "wait" THEN reached[r][x[2]] >= x[3] ELSE TRUE
Reach(r, x) == reached' = IF x[1] = "record" THEN [reached EXCEPT ![r][x[2]] = x[3]] ELSE reached
Acknowledge(x) == acked' = IF x[1] = "end" THEN acked \cup {x[2]} ELSE acked

\* The device does the next thing on a rank's forward stream. (Environment.)
ComputeRuns(r) ==
    /\ \E x \in Heads(compute[r]) :
        /\ Runnable(r, x)
        /\ compute' = [compute EXCEPT ![r] = Tail(@)]
        /\ Reach(r, x) /\ Acknowledge(x)
        /\ dev' = CASE x[1] = "write" -> [dev EXCEPT ![r][x[3]][x[4]][x[2]] = x[5]]
                    [] x[1] = "restore" -> [dev EXCEPT ![r][x[3]] = host[x[2]]]
                    [] OTHER -> dev
        /\ hot' = IF x[1] = "fetch" THEN [hot EXCEPT ![r][x[2]] = host[x[2][1]][x[2][2]]["target"]] ELSE hot
        /\ faults' = IF x[1] = "use" /\ ~Shows(hot[r][x[2]], x[3]) THEN faults \cup {"stale hot row"} ELSE faults
    /\ UNCHANGED <<host, registered, copies, issued, worker, truth, placed, wanted, rejected, wrote, sent>>

\* The device does the next thing on a rank's copy stream: a row goes to the host as it is then. (Environment.)
CopyRuns(r) ==
    /\ \E x \in Heads(copies[r]) :
        /\ Runnable(r, x)
        /\ copies' = [copies EXCEPT ![r] = Tail(@)]
        /\ Reach(r, x) /\ Acknowledge(x)
        /\ host' = IF x[1] = "copy" THEN [host EXCEPT ![x[4]][x[5]][x[2]] = dev[r][x[3]][x[5]][x[2]]] ELSE host
        /\ wrote' = IF x[1] = "copy" THEN wrote \cup {r} ELSE wrote
    /\ UNCHANGED <<dev, hot, registered, compute, issued, worker, truth, placed, wanted, rejected, sent, faults>>

RECURSIVE Flat(_)
Flat(ss) == IF ss = <<>> THEN <<>> ELSE Head(ss) \o Flat(Tail(ss))
Each(s, Op(_)) == [i \in 1..Len(s) |-> Op(s[i])]
Wait(r, e) == <<"wait", e, issued[r][e]>>
Recorded(r, e) == <<"record", e, issued[r][e] + 1>>

RowCopies(rs, l) == Each(rs, LAMBDA x : <<"copy", l, x.db, x.hb, x.off>>)
PageCopies(t) == Flat([i \in 1..Cardinality(Offsets) |->
                    << <<"copy", "target", t.db, t.hb, i - 1>>, <<"copy", "draft", t.db, t.hb, i - 1>> >>])
Ends(ts) == Each(ts, LAMBDA t : <<"end", t.id>>)

Moves(ts) == Flat(Each(ts, PageCopies))

\* Transfers to the host are copies of pages, unless each row was mirrored as it was written: then there is only an end.
WritesPages(r, ts) == r = Writer /\ ~Eager /\ ts # <<>>

\* Hand `what` to the copy stream, behind all that the forward stream has been given: `ready` is recorded there and
\* waited for here; the step's event is recorded behind it, and transfers end there. Then the forward stream waits for
\* it, if `order`.
Submit(r, given, what, ends, order) ==
    LET e == current[r]
        onCompute == given \o <<Recorded(r, "ready")>>
        wait == <<"wait", e, issued[r][e] + 1>>
    IN  /\ compute' = [compute EXCEPT ![r] = @ \o onCompute \o (IF order THEN <<wait>> ELSE <<>>)]
        /\ copies' = [copies EXCEPT ![r] = @ \o << <<"wait", "ready", issued[r]["ready"] + 1>> >> \o what
                                              \o <<Recorded(r, e)>> \o ends]
        /\ issued' = [issued EXCEPT ![r]["ready"] = @ + 1, ![r][e] = @ + 1]
        /\ dirty' = [dirty EXCEPT ![r] = ~order]

\* Nothing for the copy stream: the step's event is recorded on the forward stream, unless a copy of the phase has
\* it already, which the forward stream then waits for.
Pass(r, ends) ==
    LET e == current[r] IN
    /\ dirty' = [dirty EXCEPT ![r] = FALSE]
    /\ copies' = [copies EXCEPT ![r] = @ \o ends]
    /\ IF dirty[r] THEN /\ compute' = [compute EXCEPT ![r] = Append(@, Wait(r, e))]
                        /\ UNCHANGED issued
                   ELSE /\ compute' = [compute EXCEPT ![r] = Append(@, Recorded(r, e))]
                        /\ issued' = [issued EXCEPT ![r][e] = @ + 1]
=============================================================================
