// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Puts the instruction set of a translation unit into the names of its functions. Units of one program may then be
// compiled with different -march. Otherwise the linker would keep one copy of an inline function, perhaps one with
// instructions that the processor lacks.
//
//   inline namespace ROTOSCALE_ISA   Around whole headers: detail/, the fast paths, the CPU's reference GEMM.
//   ROTOSCALE_ISA_TAG                On functions of data types, which keep one name so that units can exchange them.
//                                    Part of ROTOSCALE_HD.
#pragma once

#include "rotoscale/version.hpp"

// Features that change the code that compilers generate from the headers. Each becomes a part of the name.
#if defined(__SSE4_2__)
#define ROTOSCALE_ISA_1 _sse4
#else
#define ROTOSCALE_ISA_1
#endif
#if defined(__AVX__)
#define ROTOSCALE_ISA_2 _avx
#else
#define ROTOSCALE_ISA_2
#endif
#if defined(__AVX2__)
#define ROTOSCALE_ISA_3 _avx2
#else
#define ROTOSCALE_ISA_3
#endif
#if defined(__FMA__)
#define ROTOSCALE_ISA_4 _fma
#else
#define ROTOSCALE_ISA_4
#endif
#if defined(__BMI2__)
#define ROTOSCALE_ISA_5 _bmi2
#else
#define ROTOSCALE_ISA_5
#endif
#if defined(__AVX512F__)
#define ROTOSCALE_ISA_6 _avx512f
#else
#define ROTOSCALE_ISA_6
#endif
#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define ROTOSCALE_ISA_7 _bw
#else
#define ROTOSCALE_ISA_7
#endif
#if defined(__AVX512VBMI__) && defined(__AVX512VBMI2__)
#define ROTOSCALE_ISA_8 _vbmi
#else
#define ROTOSCALE_ISA_8
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define ROTOSCALE_ISA_9 _vnni
#else
#define ROTOSCALE_ISA_9
#endif
#if defined(__AVX512FP16__)
#define ROTOSCALE_ISA_10 _fp16
#else
#define ROTOSCALE_ISA_10
#endif

#define ROTOSCALE_ISA_JOIN_(a, b, c, d, e, f, g, h, i, j) isa##a##b##c##d##e##f##g##h##i##j
#define ROTOSCALE_ISA_JOIN(a, b, c, d, e, f, g, h, i, j) ROTOSCALE_ISA_JOIN_(a, b, c, d, e, f, g, h, i, j)
#define ROTOSCALE_ISA_TEXT_(name) #name
#define ROTOSCALE_ISA_TEXT(name) ROTOSCALE_ISA_TEXT_(name)

#define ROTOSCALE_ISA                                                                                     \
  ROTOSCALE_ISA_JOIN(ROTOSCALE_ISA_1, ROTOSCALE_ISA_2, ROTOSCALE_ISA_3, ROTOSCALE_ISA_4, ROTOSCALE_ISA_5, \
                     ROTOSCALE_ISA_6, ROTOSCALE_ISA_7, ROTOSCALE_ISA_8, ROTOSCALE_ISA_9, ROTOSCALE_ISA_10)

#if defined(__CUDACC__) || defined(__HIP__)
#define ROTOSCALE_ISA_TAG
#else
#define ROTOSCALE_ISA_TAG __attribute__((abi_tag(ROTOSCALE_ISA_TEXT(ROTOSCALE_ISA))))
#endif
