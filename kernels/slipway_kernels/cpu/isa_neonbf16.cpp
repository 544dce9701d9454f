#define SW_ISA neonbf16
#include "isa.inl"
