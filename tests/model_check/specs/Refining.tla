------------------------------ MODULE Refining ------------------------------
EXTENDS Counter
Abs == INSTANCE Abstract WITH total <- n
Refines == Abs!Spec
RefinesRising == Abs!Rising
=============================================================================
