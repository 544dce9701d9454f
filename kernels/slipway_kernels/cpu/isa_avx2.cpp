#define SW_ISA avx2
#include "isa.inl"
