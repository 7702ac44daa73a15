// SPDX-License-Identifier: Apache-2.0

package main

// A ring keeps the bytes of a stream from the first that the peer has not acknowledged to the last that was read.
// Its memory is touched from the front again whenever it is empty, so that short messages stay in the processor's cache.
type ring struct {
	kept  []byte
	base  uint64 // offset that lies at index 0
	start uint64 // of the first byte that is kept
	end   uint64 // after the last one
}

func (r *ring) index(offset uint64) uint64 {
	return (offset - r.base) % uint64(len(r.kept))
}

// free returns where the next bytes go, at most one frame's; nothing when it is full. Only who fills it may ask.
func (r *ring) free() []byte {
	room := uint64(len(r.kept)) - (r.end - r.start)
	if r.start == r.end {
		r.base = r.start
	}
	at := r.index(r.end)
	return r.kept[at : at+least(room, uint64(len(r.kept))-at, mostDataBytes)]
}

// from returns consecutive bytes from an offset on, at most one frame's.
func (r *ring) from(offset uint64) []byte {
	at := r.index(offset)
	return r.kept[at : at+least(r.end-offset, uint64(len(r.kept))-at, mostDataBytes)]
}

// put keeps bytes that end at r.end, which counts them already.
func (r *ring) put(last []byte) {
	if r.kept == nil {
		r.kept = make([]byte, windowBytes)
	}
	first := r.end - uint64(len(last))
	if r.start == first {
		r.base = first
	}
	n := copy(r.kept[r.index(first):], last)
	copy(r.kept, last[n:])
}

func least(first uint64, others ...uint64) uint64 {
	for _, each := range others {
		if each < first {
			first = each
		}
	}
	return first
}
