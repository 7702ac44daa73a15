// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Every message of the link is a frame: a header of headerBytes in network byte order, and a payload.
//
//	byte   0     kind
//	       1     version
//	       2- 3  port     number of the server's port (open)
//	       4- 7  stream   from 1, as the guest counts its connections
//	       8-15  offset   of the payload's first byte in its stream; of admit the epoch
//	      16-23  ack      bytes of the stream that came from the peer and were delivered
//	      24-27  length   of the payload
//
// A field that a kind does not use is 0. A header that breaks a rule ends the connection before its payload is read.
const (
	headerBytes = 28
	version     = 1
	nonceBytes  = 32
	idBytes     = 16
	placeBytes  = 12

	mostStreams    = 32
	mostDataBytes  = 256 << 10
	mostOfferBytes = 64 << 10
	mostLeaseBytes = 64
	mostReasonText = 256
)

type kind byte

const (
	challenge kind = iota + 1 // doorman to guest: a nonce
	answer                    // guest to doorman: that nonce, and a lease; without lease: what is there?
	offers                    // doorman to guest: the leases of this guest, JSON
	admit                     // doorman to gateway: a lease and its epoch
	admitted                  // gateway to doorman, which passes it on to the guest
	refused                   // to either: a sentence, then the end
	hello                     // guest to gateway: its identity, and a place for each of its streams
	welcome                   // gateway to guest: the same, and in offset the last stream that was opened
	open                      // guest to gateway: a stream begins
	data
	ack
	end   // no more bytes: takes one offset, so that it is acknowledged as a byte is
	reset // the stream is gone
	ping
)

// A rule says which fields a kind uses, and how long its payload may be.
type rule struct {
	stream, port, offset, ack bool
	least, most, step         uint32
}

var rules = map[kind]rule{
	challenge: {least: nonceBytes, most: nonceBytes},
	answer:    {least: nonceBytes, most: nonceBytes + mostLeaseBytes},
	offers:    {least: 2, most: mostOfferBytes},
	admit:     {offset: true, least: 1, most: mostLeaseBytes},
	admitted:  {},
	refused:   {least: 1, most: mostReasonText},
	hello:     {least: idBytes, most: idBytes + mostStreams*placeBytes, step: placeBytes},
	welcome:   {offset: true, least: idBytes, most: idBytes + mostStreams*placeBytes, step: placeBytes},
	open:      {stream: true, port: true},
	data:      {stream: true, offset: true, ack: true, least: 1, most: mostDataBytes},
	ack:       {stream: true, ack: true},
	end:       {stream: true, offset: true, ack: true},
	reset:     {stream: true},
	ping:      {},
}

type header struct {
	kind   kind
	port   uint16
	stream uint32
	offset uint64
	ack    uint64
	length uint32
}

func (h header) put(to []byte) {
	to[0], to[1] = byte(h.kind), version
	binary.BigEndian.PutUint16(to[2:], h.port)
	binary.BigEndian.PutUint32(to[4:], h.stream)
	binary.BigEndian.PutUint64(to[8:], h.offset)
	binary.BigEndian.PutUint64(to[16:], h.ack)
	binary.BigEndian.PutUint32(to[24:], h.length)
}

// parse returns the header that starts b, which has headerBytes at least.
func parse(b []byte) (header, error) {
	h := header{
		kind:   kind(b[0]),
		port:   binary.BigEndian.Uint16(b[2:]),
		stream: binary.BigEndian.Uint32(b[4:]),
		offset: binary.BigEndian.Uint64(b[8:]),
		ack:    binary.BigEndian.Uint64(b[16:]),
		length: binary.BigEndian.Uint32(b[24:]),
	}
	r, known := rules[h.kind]
	switch {
	case b[1] != version:
		return h, fmt.Errorf("version %d of a frame, not %d", b[1], version)
	case !known:
		return h, fmt.Errorf("kind %d of a frame", b[0])
	case r.stream != (h.stream != 0), !r.port && h.port != 0, !r.offset && h.offset != 0, !r.ack && h.ack != 0:
		return h, fmt.Errorf("a frame of kind %d with fields of another one", h.kind)
	case h.length < r.least || h.length > r.most:
		return h, fmt.Errorf("%d bytes in a frame of kind %d, not %d to %d", h.length, h.kind, r.least, r.most)
	case r.step != 0 && (h.length-r.least)%r.step != 0:
		return h, fmt.Errorf("%d bytes in a frame of kind %d are no whole places", h.length, h.kind)
	}
	return h, nil
}

// frame returns a whole frame, its length filled in.
func frame(h header, payload []byte) []byte {
	h.length = uint32(len(payload))
	made := make([]byte, headerBytes, headerBytes+len(payload))
	h.put(made)
	return append(made, payload...)
}

// readFrame reads one frame of one of the kinds.
func readFrame(from io.Reader, kinds ...kind) (header, []byte, error) {
	var head [headerBytes]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return header{}, nil, err
	}
	h, err := parse(head[:])
	if err != nil {
		return h, nil, err
	}
	for _, each := range kinds {
		if h.kind == each {
			payload := make([]byte, h.length)
			_, err = io.ReadFull(from, payload)
			return h, payload, err
		}
	}
	return h, nil, fmt.Errorf("a frame of kind %d where none of it is expected", h.kind)
}

// A place says how much of a stream has come.
type place struct {
	stream   uint32
	received uint64
}

// places returns the identity and the places of a hello or a welcome.
func places(payload []byte) (id [idBytes]byte, found []place, err error) {
	copy(id[:], payload)
	last := uint32(0)
	for rest := payload[idBytes:]; len(rest) > 0; rest = rest[placeBytes:] {
		each := place{binary.BigEndian.Uint32(rest), binary.BigEndian.Uint64(rest[4:])}
		if each.stream <= last {
			return id, nil, fmt.Errorf("place of stream %d after that of %d", each.stream, last)
		}
		last = each.stream
		found = append(found, each)
	}
	return id, found, nil
}

// putPlaces is the reverse of places.
func putPlaces(id [idBytes]byte, known []place) []byte {
	made := append([]byte(nil), id[:]...)
	for _, each := range known {
		var one [placeBytes]byte
		binary.BigEndian.PutUint32(one[:], each.stream)
		binary.BigEndian.PutUint64(one[4:], each.received)
		made = append(made, one[:]...)
	}
	return made
}
