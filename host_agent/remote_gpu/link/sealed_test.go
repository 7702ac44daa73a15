// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"math/rand"
	"net"
	"testing"
	"time"
)

// inParts is a connection on which bytes come in parts.
type inParts struct {
	net.Conn
	parts [][]byte
}

func (c *inParts) Read(b []byte) (int, error) {
	if len(c.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.parts[0])
	if c.parts[0] = c.parts[0][n:]; len(c.parts[0]) == 0 {
		c.parts = c.parts[1:]
	}
	return n, nil
}

func TestNoByteOfTheNextRecordIsGiven(t *testing.T) {
	for seed := int64(0); seed < 200; seed++ {
		draw := rand.New(rand.NewSource(seed))
		var all []byte
		ends := map[int]bool{}
		for n := draw.Intn(20); n >= 0; n-- {
			body := noise(seed, []int{0, 1, draw.Intn(100), draw.Intn(1 << 16)}[draw.Intn(4)])
			head := []byte{23, 3, 3, 0, 0}
			binary.BigEndian.PutUint16(head[3:], uint16(len(body)))
			all = append(append(all, head...), body...)
			ends[len(all)] = true
		}
		cut := all[:len(all):len(all)]
		if seed%2 == 0 {
			cut = append(cut, 23, 3, 3) // less than the head of one more
		}
		conn := &inParts{}
		for rest := cut; len(rest) > 0; {
			n := 1 + draw.Intn([]int{3, 1000, 1 << 18}[draw.Intn(3)])
			if n > len(rest) {
				n = len(rest)
			}
			conn.parts = append(conn.parts, rest[:n])
			rest = rest[n:]
		}
		g := gather(conn)
		var found []byte
		for {
			piece := make([]byte, 1+draw.Intn(1<<17))
			whole := g.whole()
			begin := len(found)
			n, err := g.Read(piece)
			found = append(found, piece[:n]...)
			for at := begin + 1; at < len(found); at++ {
				if ends[at] {
					t.Fatalf("seed %d: %d to %d are of two records", seed, begin, len(found))
				}
			}
			if whole && (begin != 0 && !ends[begin] || n == 0) {
				t.Fatalf("seed %d: at %d no record begins that was read", seed, begin)
			}
			if err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(found, cut) {
			t.Fatalf("seed %d: %d bytes of %d", seed, len(found), len(cut))
		}
	}
}

func TestRecordsThatCameTogetherAreReturnedTogether(t *testing.T) {
	operator := newAuthority(t, "the operator")
	compute, _ := operator.issue(t.TempDir(), computeHost, x509.ExtKeyUsageClientAuth)
	gpu, _ := operator.issue(t.TempDir(), gpuHost, x509.ExtKeyUsageServerAuth)
	operator.must(compute.load())
	operator.must(gpu.load())
	ours, theirs := sockets(t)
	taken := make(chan *sealed, 1)
	go func() {
		conn, err := gpu.server(theirs, func(tls.ConnectionState) error { return nil })
		if err != nil {
			t.Error(err)
		}
		taken <- conn
	}()
	from, err := compute.client(ours, gpuHost)
	operator.must(err)
	to := <-taken
	sent := noise(1, 7*recordBytes+100)
	_, err = from.Write(sent)
	operator.must(err)
	buffer := make([]byte, readAheadBytes)
	first, err := to.Read(buffer[:1])
	operator.must(err)
	time.Sleep(200 * time.Millisecond) // all of it is there
	_, _ = to.Read(buffer[1:2])
	have := first + 1
	most := 0
	for have < len(sent) {
		n, err := to.Read(buffer[have:])
		operator.must(err)
		have += n
		if n > most {
			most = n
		}
	}
	if !bytes.Equal(buffer[:have], sent) {
		t.Fatal("other bytes")
	}
	if most <= recordBytes {
		t.Errorf("%d bytes at once", most)
	}
}
