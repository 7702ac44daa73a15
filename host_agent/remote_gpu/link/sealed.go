// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"sync"
)

// A sealed pipe is a TLS connection whose records are written together and read together: crypto/tls writes, and
// returns, each one by itself, and who passes them on would call the kernel, and wake the next, for each 16 KiB.
type sealed struct {
	*tls.Conn
	under *gathered
}

// gathered is what lies below TLS. It reads ahead, and gives TLS no byte of the next record: so it knows whether TLS
// can return another one without waiting.
type gathered struct {
	net.Conn
	ahead []byte
	begin int // of what was read and not given
	end   int
	left  int // of the record that is being given

	mu      sync.Mutex
	holding bool
	held    []byte
}

const (
	readAheadBytes = mostDataBytes
	sealHeadBytes  = 5 // of a record: kind, version, and the length of what follows
)

func gather(plain net.Conn) *gathered {
	return &gathered{Conn: plain, ahead: make([]byte, readAheadBytes)}
}

// Read returns bytes of one record. One goroutine reads at a time.
func (g *gathered) Read(b []byte) (int, error) {
	for g.left == 0 && g.end-g.begin < sealHeadBytes || g.end == g.begin {
		if err := g.fill(); err != nil {
			n := copy(b, g.ahead[g.begin:g.end]) // less than a head: the record is cut off
			g.begin += n
			return n, err
		}
	}
	if g.left == 0 {
		g.left = g.next()
	}
	n := copy(b, g.ahead[g.begin:g.begin+int(least(uint64(g.left), uint64(g.end-g.begin)))])
	g.begin += n
	g.left -= n
	return n, nil
}

// fill reads what is there, after what was read before.
func (g *gathered) fill() error {
	g.end = copy(g.ahead, g.ahead[g.begin:g.end])
	g.begin = 0
	n, err := g.Conn.Read(g.ahead[g.end:])
	g.end += n
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// next returns how long the record is that begins here.
func (g *gathered) next() int {
	return sealHeadBytes + int(binary.BigEndian.Uint16(g.ahead[g.begin+3:]))
}

// whole says whether a record was read that TLS has nothing of yet.
func (g *gathered) whole() bool {
	there := g.end - g.begin
	return g.left == 0 && there >= sealHeadBytes && there >= g.next()
}

func (g *gathered) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holding {
		g.held = append(g.held, b...)
		return len(b), nil
	}
	return g.Conn.Write(b)
}

func (g *gathered) hold() {
	g.mu.Lock()
	g.holding = true
	g.mu.Unlock()
}

func (g *gathered) release() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := g.Conn.Write(g.held)
	g.holding, g.held = false, g.held[:0]
	return err
}

// Write writes all records of b at once. One goroutine writes at a time.
func (s *sealed) Write(b []byte) (int, error) {
	if err := s.writeAll(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (s *sealed) writeAll(parts ...[]byte) error {
	s.under.hold()
	var err error
	for _, part := range parts {
		if _, err = s.Conn.Write(part); err != nil {
			break
		}
	}
	if failed := s.under.release(); err == nil {
		err = failed
	}
	return err
}

// Read returns all that can be had without waiting, and waits for the first of it. One goroutine reads at a time.
func (s *sealed) Read(b []byte) (n int, err error) {
	for {
		more, err := s.Conn.Read(b[n:])
		n += more
		if err != nil || n == len(b) || !s.under.whole() {
			return n, err
		}
	}
}

// Close cuts the connection without a word: the end of a link has no meaning, and who hangs must not be waited for.
func (s *sealed) Close() error { return s.under.Conn.Close() }

// writeBoth writes two parts, in one call of the kernel where the pipe has one.
func writeBoth(p pipe, first, second []byte) error {
	if s, is := p.(*sealed); is {
		return s.writeAll(first, second)
	}
	both := net.Buffers{first, second}
	_, err := both.WriteTo(p)
	return err
}
