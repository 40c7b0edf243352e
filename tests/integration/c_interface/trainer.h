/* The training that the programs of this test share: batches of a field of 6 by 4 points whose numbers are exact in binary, so that C,
 * C++ and Fortran train on the same bits. */
#ifndef TRAINER_H
#define TRAINER_H

enum { kRows = 2, kNy = 6, kNx = 4, kPoints = kNy * kNx, kElements = kRows * kPoints };

/* This rank's rows of the batch of a step. */
static void fill_batch(int step, int rank, float* x, float* target) {
  int i;
  for (i = 0; i < kElements; ++i) {
    const int place = rank * kElements + i;
    x[i] = (float)((place * 7 + step * 3) % 17) / 8.0f - 1.0f;
    target[i] = (float)((place * 5 + step) % 13) / 8.0f - 0.75f;
  }
}

#endif
