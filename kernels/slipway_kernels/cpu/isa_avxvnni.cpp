#define SW_ISA avxvnni
#include "isa.inl"
