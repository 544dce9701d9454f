#define SW_ISA generic
#include "isa.inl"
