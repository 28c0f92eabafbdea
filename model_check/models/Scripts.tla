------------------------------ MODULE Scripts ------------------------------
(* What the scheduler hands out in the models, and what bounds them. The scheduler frees and reuses the     *)
(* slots of a request one step before it reports the request as finished.                                   *)
EXTENDS PrefixCache

CONSTANTS r1, r2, r3, s1, s2

Row(r, s, p) == [req |-> r, slot |-> s, pos |-> p]
Batch(ended, hits, rows, keys) == [ended |-> ended, hits |-> hits, rows |-> rows, keys |-> keys]

(* r1 fills s1; r2 hits it; r3 takes it over while r2's read may be pending, before r1 is reported.         *)
TakeoverBatches(n) ==
    CASE n = 1 -> {Batch({}, <<>>, <<Row(r1, s1, 0)>>, Keys)}
      [] n = 2 -> {Batch({}, r2 :> {s1}, <<Row(r2, s2, 1)>>, Keys)}
      [] n = 3 -> {Batch({}, <<>>, <<Row(r3, s1, 0)>>, Keys)}
      [] OTHER -> {}

(* r1 fills s1 with both keys and goes on, or ends while r2 hits s1.                                        *)
DeferredBatches(n) ==
    CASE n = 1 -> {Batch({}, <<>>, <<Row(r1, s1, 0)>>, Keys)}
      [] n = 2 -> {Batch({}, <<>>, <<Row(r1, s2, 1)>>, DeferredKeys),
                   Batch({r1}, r2 :> {s1}, <<Row(r2, s2, 1)>>, ImmediateKeys)}
      [] OTHER -> {}

(* A new tenant writes only the immediate key of a slot that has rows of both.                              *)
SwitchBatches(n) ==
    CASE n = 1 -> {Batch({}, <<>>, <<Row(r1, s1, 0)>>, Keys)}
      [] n = 2 -> {Batch({}, <<>>, <<Row(r2, s1, 0)>>, ImmediateKeys)}
      [] OTHER -> {}

(* Clones only: rows that are claimed again while their task is open, under a budget of two bytes.          *)
ClonesBatches(n) ==
    CASE n = 1 -> {Batch({}, <<>>, <<Row(r1, s1, 0)>>, Keys)}
      [] n = 2 -> {Batch({}, <<>>, <<Row(r2, s1, 0)>>, Keys), Batch({}, r3 :> {s1}, <<Row(r1, s2, 1)>>, Keys)}
      [] n = 3 -> {Batch({r1}, <<>>, <<Row(r2, s2, 1)>>, Keys), Batch({}, r3 :> {s1}, <<Row(r1, s1, 0)>>, Keys)}
      [] OTHER -> {}

(* r2 hits the slot that r1 fills in the same step, over an older row of r3.                                *)
SameStepBatches(n) ==
    CASE n = 1 -> {Batch({}, <<>>, <<Row(r3, s1, 0)>>, Keys)}
      [] n = 2 -> {Batch({}, r2 :> {s1}, <<Row(r1, s1, 0), Row(r2, s2, 1)>>, Keys)}
      [] OTHER -> {}

(* As SameStep, with a third step, so that a failed write is seen by the engine's next entry.               *)
FailureBatches(n) ==
    IF n <= 2 THEN SameStepBatches(n)
    ELSE IF n = 3 THEN {Batch({r3}, <<>>, <<Row(r1, s2, 1)>>, Keys)} ELSE {}

(* Two steps of one request, with a hit of another; resets come between any two.                            *)
ResetBatches(n) ==
    CASE n = 1 -> {Batch({}, <<>>, <<Row(r1, s1, 0)>>, Keys)}
      [] n = 2 -> {Batch({}, r2 :> {s1}, <<Row(r1, s2, 1)>>, Keys)}
      [] OTHER -> {}

(* One step, so that a shutdown meets everything that is under way. *)
OneStepBatches(n) == IF n = 1 THEN {Batch({}, <<>>, <<Row(r1, s1, 0)>>, Keys)}
                     ELSE IF n = 2 THEN {Batch({}, r2 :> {s1}, <<Row(r2, s2, 1)>>, ImmediateKeys)} ELSE {}

NoFailure == \A t \in DOMAIN tasks : tasks[t].state # "FAILED"
NoReset == epoch = 0
OneReset == epoch <= 1
StaysOpen == ~closed

(* What the reach models say never happens.                                                                 *)
NoPreservedDelivered == delivery # None => delivery.aside = {}
NoReplannedHit == delivery # None => delivery.read[4] # "late"
NoStagedDelivered == \A t \in Readers : At(t, "gathered") => DOMAIN fetch[t].plan.staged = {}
NoTornGathered == \A t \in Readers : At(t, "gathered") => Torn \notin Range(fetch[t].got)
NoFlush == ~At("engine", "flushed")
NoLandingAfterPublish == \A p \in Pages : page[p] # None /\ ~page[p].landed => page[p].step \notin DOMAIN steps
NoLoss == ~lost
NoAbandonedTask == \A t \in DOMAIN completed : ~tasks[completed[t]].abandoned
NoEnd == ~(At("engine", "ended") /\ lost /\ DOMAIN consumed # {})
=============================================================================
