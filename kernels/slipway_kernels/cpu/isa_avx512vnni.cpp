#define SW_ISA avx512vnni
#include "isa.inl"
