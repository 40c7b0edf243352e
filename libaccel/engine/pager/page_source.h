// PageSource: where the bytes of a unit come from when it is filled, and go to when it is evicted.
//
// The pager decides when; a source knows how: copy from memory of its own, map the shards of its peers side by side, run
// a collective. A unit has one range of addresses for ever (guard_memory.h); nobody but the source touches it between
// the begin of fill() and its return, and after the begin of release().
//
//   inaccessible --fill()--> holds the unit's values --release(), then decommit() by the pager--> inaccessible
//
// A source that copies calls range.commit() and writes into what it gets; one that maps calls range.map() for each
// piece, and needs no commit(). Bytes between slots (UnitLayout) may be left unset.
//
// Threads:  fill() and release() of different units may run at the same time, from any thread; calls for one unit come
//           one after the other. With PagerOptions::prefetch_units = 0 all calls come from threads that run operators.
// Errors    fill() may throw: the unit stays evicted, and the operator that wanted it throws. release() of a unit that
//           nobody wrote to must not throw.
#pragma once

#include <cstddef>
#include <span>

#include "libaccel/engine/pager/guard_memory.h"
#include "libaccel/engine/pager/write_permit.h"

namespace accel::pager {

class PageSource {
 public:
  virtual ~PageSource() = default;

  // Makes the whole range readable and writable, with the values of all slots of `unit` (index into UnitLayout::units).
  virtual void fill(std::size_t unit, GuardRange& range) = 0;

  // Takes back what is in `range`, which is still accessible. written: the slots (indices into Unit::slots) that an
  // operator or a pin wrote to since fill(); their values replace those that the source has. A source whose pages are
  // its memory has nothing to do.
  virtual void release(std::size_t unit,
                       GuardRange& range,
                       std::span<const std::size_t> written) = 0;

  // Of operators that write to its pages; nullptr: they always may. The same object for the life of the source.
  [[nodiscard]] virtual const WritePermit* write_permit() const noexcept { return nullptr; }
};

}  // namespace accel::pager
