#define SW_ISA avx512bf16
#include "isa.inl"
