#define SW_ISA avx512
#include "isa.inl"
