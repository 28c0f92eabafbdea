------------------------------- MODULE Cases --------------------------------
(* What the models share: schedules, the end of a behaviour, and what must be reachable.                   *)
EXTENDS Agreement

All == {"h", "d"}

\* Blocks of one slot, and of two.
Single == {{s} : s \in Slots}
Pairs == {{s \in Slots : s \div 2 = n} : n \in {s \div 2 : s \in Slots}}

\* One request's share of a step: request, first position, slots in order, hit.
Part(r, first, slots, hit) == [r |-> r, first |-> first, slots |-> slots, hit |-> hit]
\* A step: requests that ended, slots given to new requests, the parts of its batch, the keys that it saves.
Step(ended, parts, keys) ==
    LET of(r) == {i \in 1..Len(parts) : parts[i].r = r}
        part(r) == parts[CHOOSE i \in of(r) : TRUE]
        new(r) == of(r) # {} /\ part(r).first = Len(part(r).hit)  \* a request that goes on has no hit and is further
    IN  [ended |-> ended,
         given |-> Whole(UNION {IF new(r) THEN Range(part(r).slots) ELSE {} : r \in Requests}),
         order |-> [i \in 1..Len(parts) |-> parts[i].r],
         rows |-> [r \in Requests |-> IF of(r) = {} THEN {}
                     ELSE {<<part(r).first + i - 1, part(r).slots[i]>> : i \in 1..Len(part(r).slots)}],
         hits |-> [r \in Requests |-> IF of(r) = {} THEN <<>> ELSE part(r).hit],
         keys |-> keys]
Idle(ended) == Step(ended, <<>>, {})

-----------------------------------------------------------------------------
(* Schedules. A slot is given on before the request that has it is reported as ended.                      *)

\* b hits a's row, and c takes the slot over; a's end is reported a step later.
Takeover == { << Step({}, <<Part("a", 0, <<0>>, <<>>)>>, Keys),
                 Step({}, <<Part("b", 1, <<1>>, <<0>>)>>, Keys),
                 Step({}, <<Part("c", 0, <<0>>, <<>>)>>, Keys),
                 Idle({"a"}) >> }

\* b hits two rows of a, one of which a writes in the same step, over c's; c's id comes back as another generation.
SameStep == { << Step({}, <<Part("c", 0, <<0>>, <<>>), Part("a", 0, <<1>>, <<>>)>>, Keys),
                 Step({"c"}, <<Part("a", 1, <<0>>, <<>>), Part("b", 2, <<2>>, <<1, 0>>)>>, Keys),
                 Step({"a"}, <<Part("c", 0, <<0>>, <<>>)>>, Keys) >> }

\* The same with a new request: a was just given the slot that b hits.
Failed == { << Step({}, <<Part("c", 0, <<0>>, <<>>)>>, Keys),
               Step({"c"}, <<Part("a", 0, <<0>>, <<>>), Part("b", 1, <<1>>, <<0>>)>>, Keys),
               Step({"a"}, <<Part("c", 0, <<0>>, <<>>)>>, Keys) >> }

\* a was given c's slot and is gone before it wrote: b's hit there finds nothing. Or it was preempted and is back.
Window == { << Step({}, <<Part("c", 0, <<0>>, <<>>)>>, Keys),
               Step({"c"}, <<Part("a", 0, <<0>>, <<>>)>>, Keys),
               Step({"a"}, <<Part("b", 1, <<1>>, <<0>>)>>, Keys) >>,
            << Step({}, <<Part("a", 0, <<0>>, <<>>)>>, Keys),
               Step({"a"}, <<Part("a", 0, <<0>>, <<>>)>>, Keys),
               Step({}, <<Part("b", 1, <<1>>, <<0>>)>>, Keys) >> }

\* Deferred rows: appended to an open task, read while they are staged, written at the end.
Appended == { << Step({}, <<Part("a", 0, <<0>>, <<>>)>>, {"d"}),
                 Step({}, <<Part("a", 1, <<1>>, <<>>)>>, {"d"}),
                 Idle({"a"}),
                 Step({}, <<Part("b", 1, <<1>>, <<0>>)>>, {"d"}) >> }

\* A deferred row is taken over by b, and a takes the slot back.
TakenBack == { << Step({}, <<Part("a", 0, <<0>>, <<>>)>>, {"d"}),
                  Step({}, <<Part("b", 0, <<0>>, <<>>)>>, {"d"}),
                  Step({"b"}, <<Part("a", 1, <<0>>, <<>>)>>, {"d"}),
                  Step({"a"}, <<Part("c", 1, <<1>>, <<0>>)>>, {"d"}) >> }

\* b takes a slot over and never writes one of the keys, which c then hits. Or c's step is the first to save that
\* key, so that its hit is planned when the step is published.
Unwritten == { << Step({}, <<Part("a", 0, <<0>>, <<>>)>>, Keys),
                  Step({"a"}, <<Part("b", 0, <<0>>, <<>>)>>, {"h"}),
                  Step({}, <<Part("c", 1, <<1>>, <<0>>)>>, Keys) >>,
               << Step({}, <<Part("b", 0, <<0>>, <<>>)>>, {"h"}),
                  Step({"b"}, <<Part("c", 1, <<1>>, <<0>>)>>, Keys) >> }

\* b, which runs already, is given a's block and writes one slot of it; c hits both. With a deferred key a's task loses
\* what it would have written beside b's row.
Mates == { << Step({}, <<Part("a", 0, <<0, 1>>, <<>>), Part("b", 0, <<2>>, <<>>)>>, Keys),
              Step({"a"}, <<Part("b", 1, <<0>>, <<>>)>>, Keys),
              Step({}, <<Part("c", 2, <<4>>, <<0, 1>>)>>, Keys) >> }

\* A save of both keys, then one that another tenant's hit joins.
Aborted == { << Step({}, <<Part("a", 0, <<0>>, <<>>)>>, Keys),
                Step({}, <<Part("b", 1, <<1>>, <<0>>)>>, Keys) >> }

\* Three steps, each any of a few: rows taken over, hits early and on the step's own rows, one key or both.
General == { <<x, y, z, Idle({"a", "b", "c"})>> :
    x \in { Step({}, <<Part("a", 0, <<0>>, <<>>)>>, K) : K \in {Keys, Deferred} },
    y \in { Step({}, <<Part("b", 1, <<1>>, <<0>>)>>, Keys),
            Step({"a"}, <<Part("a", 0, <<0>>, <<>>), Part("b", 1, <<1>>, <<0>>)>>, Keys),
            Step({}, <<Part("c", 0, <<0>>, <<>>)>>, Immediate),
            Step({}, <<Part("a", 1, <<1>>, <<>>)>>, Keys) },
    z \in { Step({}, <<Part("c", 0, <<0>>, <<>>)>>, Keys),
            Step({"b"}, <<Part("c", 1, <<1>>, <<0>>)>>, Immediate),
            Step({"a"}, <<Part("a", 0, <<1>>, <<>>)>>, Deferred) } }

\* The same twice over.
Twice == {x \o y : x, y \in General}

-----------------------------------------------------------------------------
\* Nothing is left to do: the scheduler is done or refused, all is consumed, every thread rests.
Quiet == /\ eng.up = {}
         /\ \/ eng.pc = "stopped" /\ (failed \/ closed)
            \/ eng.pc = "idle" /\ (agenda = <<>> \/ failed \/ closed)
         /\ hi \o lo = <<>> /\ (com["committer"].pc = "idle" \/ Overtook)
         /\ com["closer"].pc = "idle" \/ (com["closer"].pc = "ended" /\ com["closer"].todo = {})
         /\ \A t \in Readers : rdr[t].pc = "idle"
         /\ DOMAIN steps = {} /\ BuilderFree
         \* every write has ended, but for deferred rows of requests that go on
         /\ Unfinished \subseteq Range(openTask)
Rest == Quiet /\ UNCHANGED vars
RestSpec == Init /\ [][Next \/ Rest]_vars

-----------------------------------------------------------------------------
(* What must happen somewhere: each of these is stated as never, and must be found false.                  *)
Used(h, i) == reads[h].st = "done" /\ reads[h].step # 0 /\ reads[h].src[i] = "pool" /\ reads[h].kept[i] # Nothing
NeverPreserved == \A h \in DOMAIN reads : \A i \in RowsOfRead(h) : ~Used(h, i)
NeverPlannedAgain == \A h \in DOMAIN reads : reads[h].try = 2 => reads[h].st # "done"
NeverStaged == \A h \in DOMAIN reads : reads[h].st = "done" => "staged" \notin Range(reads[h].src)
NeverOverlap == \A t \in Readers : rdr[t].pc = "gather" /\ ~Gone(t) => \A i \in 1..Len(rdr[t].buf) :
                    rdr[t].buf[i] \in {Nothing, Garbage} \cup {reads[rdr[t].hit].want[i]}
NeverFlushed == eng.pc # "flushed"
NeverEnded == ~(com["closer"].pc = "ended" /\ eng.pc = "stopped")
NeverAbsent == \A h \in DOMAIN reads : reads[h].st = "done" => "absent" \notin Range(reads[h].src)
=============================================================================
