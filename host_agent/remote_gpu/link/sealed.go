// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/tls"
	"net"
	"sync"
)

// A sealed pipe is a TLS connection whose records are written together: crypto/tls writes each one by itself.
type sealed struct {
	*tls.Conn
	under *gathered
}

// gathered is what lies below TLS.
type gathered struct {
	net.Conn
	in      *bufio.Reader
	mu      sync.Mutex
	holding bool
	held    []byte
}

const readAheadBytes = 128 << 10

func gather(plain net.Conn) *gathered {
	return &gathered{Conn: plain, in: bufio.NewReaderSize(plain, readAheadBytes)}
}

func (g *gathered) Read(b []byte) (int, error) { return g.in.Read(b) }

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
