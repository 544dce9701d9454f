#define SW_ISA neon
#include "isa.inl"
