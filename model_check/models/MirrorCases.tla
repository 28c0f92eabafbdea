----------------------------- MODULE MirrorCases ----------------------------
(* What the models of the host mirror share: schedules, the end of a behaviour, what must be reachable.     *)
EXTENDS HostMirror

Row(db, hb, off, gen, pos, ok) == [db |-> db, hb |-> hb, off |-> off, gen |-> gen, pos |-> pos, ok |-> ok]
Move(id, hb, db, behind) == [id |-> id, hb |-> hb, db |-> db, after |-> behind]
Prefill(rs, moves) == [IdleStep EXCEPT !.rows = rs, !.moves = moves]
Decode(rs, moves) == [IdleStep EXCEPT !.rows = rs, !.moves = moves, !.deferred = TRUE]

\* A page is filled by a prefill, moved behind it, and another request writes the same page on the device.
Filled == { << Prefill(<<Row(0, 0, 0, 1, 0, TRUE), Row(0, 0, 1, 1, 1, TRUE)>>, <<Move(1, 0, 0, TRUE)>>),
               Prefill(<<Row(0, 1, 0, 2, 0, TRUE)>>, <<>>) >> }

\* A draft is rejected and its position written again; the page is moved before the forward of the next step.
Rejected == { << Decode(<<Row(0, 0, 0, 1, 0, TRUE), Row(0, 0, 1, 1, 1, FALSE)>>, <<>>),
                 Decode(<<Row(0, 0, 1, 1, 1, TRUE)>>, <<>>),
                 [IdleStep EXCEPT !.moves = <<Move(1, 0, 0, FALSE)>>] >> }

\* A block is copied a step after it was written, the copy restored and appended to.
Forked == { << Prefill(<<Row(0, 0, 0, 1, 0, TRUE)>>, <<>>),
               [Prefill(<<Row(1, 1, 1, 2, 1, TRUE)>>, <<Move(2, 1, 1, TRUE)>>) EXCEPT
                   !.copies = << <<0, 1>> >>, !.restores = <<[id |-> 1, hb |-> 1, db |-> 1]>>] >> }

\* A page moves in a step without a forward, and its block is copied in the next: in the mode that moves pages the
\* copy is still on its way then.
MovedLate == { << Decode(<<Row(0, 0, 0, 1, 0, TRUE)>>, <<>>),
                  [IdleStep EXCEPT !.moves = <<Move(1, 0, 0, FALSE)>>],
                  [IdleStep EXCEPT !.copies = << <<0, 1>> >>] >> }

\* A row is selected off the device. Then its block changes hands and gets another row by a copy, or the slot is
\* written again. It is selected once more.
Recycled == LET first == Prefill(<<Row(0, 0, 0, 1, 0, TRUE), Row(1, 1, 0, 2, 0, TRUE)>>, <<>>)
                hits(g) == [IdleStep EXCEPT !.hot = << <<0, 0, g, 0>> >>]
            IN  { << first, hits(1), [IdleStep EXCEPT !.copies = << <<1, 0>> >>, !.given = {0}], hits(2) >>,
                  << first, hits(1), Decode(<<Row(0, 0, 0, 3, 0, TRUE)>>, <<>>), hits(3) >> }

\* Another block's page is restored where the rows of the last step were, in a step that writes none.
Replaced == { << Prefill(<<Row(0, 0, 0, 1, 0, TRUE), Row(1, 1, 0, 2, 0, TRUE)>>, <<>>),
                 [IdleStep EXCEPT !.restores = <<[id |-> 1, hb |-> 1, db |-> 0]>>] >> }

\* A step restores a page and moves another one: where pages are moved, the copy may land before the page is restored.
Crossed == { << Prefill(<<Row(0, 0, 0, 1, 0, TRUE)>>, <<>>),
                [IdleStep EXCEPT !.restores = <<[id |-> 1, hb |-> 0, db |-> 1]>>, !.moves = <<Move(2, 0, 0, FALSE)>>] >> }

\* A step without rows lies between a row and a copy of its block.
Rested == { << Prefill(<<Row(0, 0, 0, 1, 0, TRUE)>>, <<>>), IdleStep, [IdleStep EXCEPT !.copies = << <<0, 1>> >>] >> }

\* A block gets a request whose first row was computed elsewhere; its page is restored and appended to.
Elsewhere == { << Prefill(<<Row(0, 0, 0, 1, 0, TRUE)>>, <<>>),
                  [Prefill(<<Row(1, 0, 1, 2, 1, TRUE)>>, <<Move(2, 0, 1, TRUE)>>) EXCEPT
                      !.imports = << <<0, 0, 2, 0>> >>, !.given = {0},
                      !.restores = <<[id |-> 1, hb |-> 0, db |-> 1]>>] >> }

\* A page moves in a step without a forward. In the next one its place on the device gets a row of another request, and
\* a block with a new tenant gets a page that holds an older row, too, which is then restored.
Reused == { << Decode(<<Row(0, 0, 0, 1, 0, TRUE), Row(0, 0, 1, 1, 1, TRUE), Row(1, 1, 1, 2, 1, TRUE)>>,
                      <<Move(1, 0, 0, TRUE)>>),
               [IdleStep EXCEPT !.moves = <<Move(2, 0, 0, FALSE)>>],
               [Decode(<<Row(0, 1, 0, 3, 0, TRUE), Row(1, 0, 0, 4, 0, TRUE)>>, <<Move(3, 0, 1, TRUE)>>) EXCEPT
                   !.given = {0}],
               [IdleStep EXCEPT !.restores = <<[id |-> 4, hb |-> 0, db |-> 0]>>] >> }

\* A page moves in a step without a forward, a row of another block is selected, and its slot gets one that was computed
\* elsewhere.
Followed == { << Decode(<<Row(0, 0, 0, 1, 0, TRUE)>>, <<Move(1, 0, 0, TRUE)>>),
                 [IdleStep EXCEPT !.moves = <<Move(2, 1, 0, FALSE)>>],
                 [IdleStep EXCEPT !.hot = << <<0, 0, 1, 0>> >>],
                 [IdleStep EXCEPT !.imports = << <<0, 0, 2, 0>> >>, !.given = {0}] >> }

\* A row is selected off the device; in the next step its slot has one that was computed elsewhere, whose page is
\* restored and written over.
Overtaken == { << Prefill(<<Row(0, 0, 0, 1, 0, TRUE)>>, <<>>),
                  [IdleStep EXCEPT !.hot = << <<0, 0, 1, 0>> >>],
                  [Decode(<<Row(1, 0, 0, 3, 0, TRUE)>>, <<>>) EXCEPT
                      !.imports = << <<0, 0, 2, 0>> >>, !.given = {0},
                      !.restores = <<[id |-> 1, hb |-> 0, db |-> 1]>>] >> }

\* A block is copied, and the copy's row is selected in the same step.
CopyShown == { << Prefill(<<Row(0, 0, 0, 1, 0, TRUE)>>, <<>>),
                  [IdleStep EXCEPT !.copies = << <<0, 1>> >>, !.given = {1}, !.hot = << <<1, 0, 1, 0>> >>] >> }

\* Every order of `n` steps behind a first one, each of one kind, where rows are mirrored as they are written. Block 0 is
\* written and moved; block 1 is copied from it, imported and restored. A row's generation is the step that made it.
Kinds == {"write", "reject", "copy", "restore", "fill", "move", "import", "select", "rest"}
RECURSIVE Held(_)
Held(kinds) ==
    IF kinds = <<>> THEN <<1, 1>>
    ELSE LET n == Len(kinds)
             held == Held(SubSeq(kinds, 1, n - 1))
         IN  CASE kinds[n] \in {"write", "fill"} -> <<n + 1, held[2]>>
               [] kinds[n] = "copy" -> <<held[1], held[1]>>
               [] kinds[n] = "import" -> <<held[1], n + 1>>
               [] OTHER -> held
Asks(kind, k, held) ==
    CASE kind = "write" -> Decode(<<Row(0, 0, 0, k, 0, TRUE)>>, <<>>)
      [] kind = "reject" -> Decode(<<Row(1, 1, 0, k, 0, FALSE)>>, <<>>)
      [] kind = "copy" -> [IdleStep EXCEPT !.copies = << <<0, 1>> >>, !.given = {1}]
      [] kind = "restore" -> [IdleStep EXCEPT !.restores = <<[id |-> k, hb |-> 1, db |-> 1]>>]
      [] kind = "fill" -> Prefill(<<Row(0, 0, 0, k, 0, TRUE)>>, <<Move(k, 0, 0, TRUE)>>)
      [] kind = "move" -> [IdleStep EXCEPT !.moves = <<Move(k, 0, 0, FALSE)>>]
      [] kind = "import" -> [IdleStep EXCEPT !.imports = << <<1, 0, k, 0>> >>, !.given = {1}]
      [] kind = "select" -> [IdleStep EXCEPT !.hot = << <<0, 0, held[1], 0>>, <<1, 0, held[2], 0>> >>]
      [] OTHER -> IdleStep
InEveryOrder(n) ==
    { <<Prefill(<<Row(0, 0, 0, 1, 0, TRUE), Row(1, 1, 0, 1, 0, TRUE)>>, <<>>)>>
        \o [k \in 1..n |-> Asks(kinds[k], k + 1, Held(SubSeq(kinds, 1, k - 1)))] : kinds \in [1..n -> Kinds] }

\* Nothing is left to do.
Quiet == /\ \A r \in Ranks : compute[r] = <<>> /\ copies[r] = <<>>
         /\ \/ \A r \in Ranks : pc[r] = "closed" \/ (pc[r] = "idle" /\ at[r] > Len(agenda))
            \/ Shared /\ \E r \in Ranks : pc[r] = "closed"  \* the others wait at the barrier until their bound
Rest == Quiet /\ UNCHANGED vars
RestSpec == Init /\ [][Next \/ Rest]_vars

NeverOverlapped == \A r \in Ranks : copies[r] = <<>> \/ compute[r] = <<>> \/ pc[r] # "written"
NeverRejected == rejected = {}
NeverCopied == \A k \in DOMAIN agenda : agenda[k].copies # <<>> => at[Writer] <= k
NeverHit == \A r \in Ranks : ~(\E k \in DOMAIN agenda : k > at[r] /\ \E h \in Range(agenda[k].hot) : <<h[1], h[2]>> \in table[r])
NeverAcknowledgedIdle == ~(taken # {} /\ at[Writer] > Len(agenda))
NeverClosed == registered
=============================================================================
