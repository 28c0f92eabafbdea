----------------------------- MODULE MirrorRows ------------------------------
(* The rows of a step: layers write them and hand them on, attention selects and fetches others, phases end. *)
EXTENDS MirrorSteps

\* Before its forward writes or selects, the rank forgets the hot rows of blocks with a new tenant.
InvalidateBlocks(r) ==
    /\ pc[r] = "started" /\ stale[r] # {}
    /\ stale' = [stale EXCEPT ![r] = {}]
    /\ table' = [table EXCEPT ![r] = {x \in @ : x[1] \notin stale[r]}]
    /\ UNCHANGED <<memory, streams, pc, at, current, rows, after, missing, dirty, agenda, imported, taken, ghosts>>

Writes(r, rs, l) == Each(rs, LAMBDA x : <<"write", l, x.db, x.off, RowOf(r, x)>>)
RECURSIVE Put(_, _, _)
Put(r, f, rs) == IF rs = <<>> THEN f ELSE Put(r, [f EXCEPT ![Head(rs).db][Head(rs).off] = RowOf(r, Head(rs))], Tail(rs))
Slots(rs) == {<<x.hb, x.off>> : x \in Range(rs)}
Sending(r, rs, l) == {<<at[r], l, x.hb, x.off>> : x \in Range(rs)}
\* Ghosts of a hand-over of rows to the copy stream.
Send(r, rs, l) ==
    /\ faults' = IF Sending(r, rs, l) \cap sent # {} THEN faults \cup {"mirrored twice"} ELSE faults
    /\ sent' = sent \cup Sending(r, rs, l)

\* A layer writes its rows: the target's in the forward, the draft's behind it and only those that stand. Where no row
\* can be rejected they are handed on at once.
Write(r, l) ==
    /\ IF l = "target" THEN pc[r] = "started" /\ stale[r] = {} ELSE pc[r] = "target"
    /\ Now(r).rows # <<>>
    /\ LET s == Now(r)
           mine == IF l = "target" THEN s.rows ELSE Accepted(s.rows)
           given == Writes(r, mine, l)
       IN  /\ pc' = [pc EXCEPT ![r] = IF l = "target" THEN "written" ELSE "drafted"]
           /\ placed' = IF l = "target" THEN [placed EXCEPT ![r] = Put(r, @, s.rows)] ELSE placed
           /\ IF r = Writer /\ mine # <<>> /\ ~s.deferred
              THEN Submit(r, given, RowCopies(mine, l), <<>>, FALSE) /\ Send(r, mine, l)
              ELSE /\ compute' = [compute EXCEPT ![r] = @ \o given]
                   /\ UNCHANGED <<copies, issued, dirty, sent, faults>>
    /\ UNCHANGED <<memory, reached, acked, at, current, rows, after, hotness, agenda, imported, taken, truth, wanted,
                   rejected, wrote>>

\* Attention selects rows that are not on the device; those that are not hot are to be fetched.
Select(r) ==
    /\ Now(r).hot # <<>> /\ stale[r] = {}
    /\ pc[r] = "written" \/ (pc[r] = "started" /\ Now(r).rows = <<>>)
    /\ LET chosen == {<<h[1], h[2]>> : h \in Range(Now(r).hot)}
       IN  /\ table' = [table EXCEPT ![r] = @ \cup chosen]
           /\ missing' = [missing EXCEPT ![r] = chosen \ table[r]]
    /\ pc' = [pc EXCEPT ![r] = "selected"]
    /\ UNCHANGED <<memory, streams, at, current, rows, after, stale, dirty, agenda, imported, taken, ghosts>>

\* They are fetched, and attention gets what was selected.
Gather(r) ==
    /\ pc[r] = "selected"
    /\ LET uses == Flat(Each(Now(r).hot, LAMBDA h :
                       (IF <<h[1], h[2]>> \in missing[r] THEN << <<"fetch", <<h[1], h[2]>> >> >> ELSE <<>>)
                       \o << <<"use", <<h[1], h[2]>>, <<h[3], h[4]>> >> >>))
       IN  compute' = [compute EXCEPT ![r] = @ \o uses]
    /\ missing' = [missing EXCEPT ![r] = {}]
    /\ pc' = [pc EXCEPT ![r] = "gathered"]
    /\ UNCHANGED <<memory, copies, issued, reached, acked, at, current, rows, after, table, stale, dirty, agenda, imported,
                   taken, ghosts>>

\* The target's phase ends: rows that were accepted are handed on, those of other slots never. Rows that were written
\* are not hot any more.
FinishTarget(r) ==
    /\ CASE pc[r] = "started" -> Now(r).rows = <<>> /\ Now(r).hot = <<>>
         [] pc[r] = "written" -> Now(r).hot = <<>>
         [] OTHER -> pc[r] = "gathered"
    /\ LET s == Now(r)
           mirrored == Accepted(rows[r])
       IN  /\ pc' = [pc EXCEPT ![r] = "target"]
           /\ table' = [table EXCEPT ![r] = @ \ Slots(s.rows)]
           /\ IF r = Writer /\ mirrored # <<>> /\ (s.deferred \/ s.rows = <<>>) /\ Eager
              THEN Submit(r, <<>>, RowCopies(mirrored, "target"), <<>>, TRUE) /\ Send(r, mirrored, "target")
              ELSE Pass(r, <<>>) /\ UNCHANGED <<sent, faults>>
           /\ rejected' = rejected \cup {RowOf(r, x) : x \in {y \in Range(s.rows) : ~y.ok}}
    /\ UNCHANGED <<memory, reached, acked, at, current, rows, after, stale, missing, agenda, imported, taken, truth, placed,
                   wanted, wrote>>

\* The draft layers' phase ends: their rows are handed on where they were not at once. The step's rows stand.
FinishDrafts(r) ==
    /\ pc[r] = "drafted"
    /\ LET s == Now(r)
           kept == Accepted(s.rows)
       IN  /\ pc' = [pc EXCEPT ![r] = "drafts"]
           /\ IF r = Writer /\ kept # <<>> /\ s.deferred /\ Eager
              THEN Submit(r, <<>>, RowCopies(kept, "draft"), <<>>, TRUE) /\ Send(r, kept, "draft")
              ELSE Pass(r, <<>>) /\ UNCHANGED <<sent, faults>>
           /\ truth' = IF r = Writer THEN Stand(r, truth, kept) ELSE truth
    /\ UNCHANGED <<memory, reached, acked, at, current, rows, after, hotness, agenda, imported, taken, placed, wanted,
                   rejected, wrote>>
=============================================================================
