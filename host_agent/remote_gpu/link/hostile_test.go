// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An attacker is the guest of a lease that keeps the rules of frames long enough to be heard.
type attacker struct {
	draw    *rand.Rand
	newest  uint32
	offsets map[uint32]uint64 // of its streams
}

// frame returns the next one: most follow from those before it, one of 200 is any.
func (a *attacker) frame() []byte {
	if a.draw.Intn(200) == 0 {
		return randomFrame(a.draw)
	}
	var st uint32
	for each := range a.offsets {
		st = each
		break
	}
	switch what := a.draw.Intn(10); {
	case st == 0 || what == 0:
		a.newest += 1 + uint32(a.draw.Intn(3))
		a.offsets[a.newest] = 0
		return frame(header{kind: open, stream: a.newest, port: uint16(a.draw.Intn(2))}, nil)
	case what == 1:
		at := a.offsets[st]
		delete(a.offsets, st)
		if a.draw.Intn(2) == 0 {
			return frame(header{kind: end, stream: st, offset: at}, nil)
		}
		return frame(header{kind: reset, stream: st}, nil)
	case what < 4:
		return frame(header{kind: []kind{ping, ack}[what-2], stream: st * uint32(what-2)}, nil)
	}
	payload := noise(a.draw.Int63(), 1+a.draw.Intn(200))
	made := frame(header{kind: data, stream: st, offset: a.offsets[st]}, payload)
	a.offsets[st] += uint64(len(payload))
	return made
}

// attack sends frames until it is cut; it returns how many, and whether the gateway has heard one of them.
func (h *house) attack(draw *rand.Rand) (sent int64, heard bool) {
	p, err := reach(h.where(guestCID))
	if err != nil {
		return 0, false
	}
	defer p.Close()
	_ = p.SetDeadline(time.Now().Add(10 * time.Second))
	say := func(made []byte) bool {
		sent++
		_, err := p.Write(made)
		return err == nil
	}
	_, nonce, err := readFrame(p, challenge)
	if err != nil {
		return 0, false
	}
	if draw.Intn(8) == 0 { // to the doorman
		for say(randomFrame(draw)) {
		}
		return sent, false
	}
	say(frame(header{kind: answer}, append(nonce, testLease...)))
	if _, _, err := readFrame(p, admitted); err != nil {
		return sent, false
	}
	if draw.Intn(8) == 0 { // to the gateway, in place of the first
		for say(randomFrame(draw)) {
		}
		return sent, true
	}
	var id [idBytes]byte
	draw.Read(id[:])
	say(frame(header{kind: hello}, putPlaces(id, nil)))
	if _, _, err := readFrame(p, welcome); err != nil {
		return sent, false
	}
	go func() { _, _ = io.Copy(io.Discard, p) }()
	a := &attacker{draw: draw, offsets: map[uint32]uint64{}}
	for say(a.frame()) {
	}
	return sent, true
}

// Real sockets, TLS and processes' ends: whatever a guest sends by doorman to gateway, both cut it and serve the next.
func TestAMillionFramesByDoormanAndGatewayAreObeyedOrCut(t *testing.T) {
	h := newHouse(t)
	most := int64(1_000_000)
	if testing.Short() {
		most = 20_000
	}
	guests := 0
	for all, draw := int64(0), rand.New(rand.NewSource(3)); all < most; {
		sent, heard := h.attack(draw)
		all += sent
		if heard {
			guests++
		}
	}
	if guests < 10 {
		t.Errorf("the gateway has heard %d guests", guests)
	}
	h.admits("after all of them")
	h.must(exchange(h.dial(), 1, 1<<20))
	eventually(t, "the doorman has forgotten them", func() bool {
		h.doorman.mu.Lock()
		defer h.doorman.mu.Unlock()
		return len(h.doorman.relays) <= 1 // the one of the last line but this
	})
}

// FuzzHandover has a gateway's session go on with what was handed over, where that is taken: it hands over the same.
func FuzzHandover(f *testing.F) {
	for _, each := range []handover{
		{Gateway: make([]byte, idBytes), Guest: make([]byte, idBytes)},
		{
			Gateway: make([]byte, idBytes), Guest: make([]byte, idBytes), Last: 9,
			Streams: []handedOver{
				{ID: 1, Received: 5, Delivered: 3, In: []byte("ab"), OutStart: 7, Out: []byte("cde")},
				{ID: 2, PeerEnded: true, Received: 4, Delivered: 4},
				{ID: 3, PeerEnded: true, Received: 4, Delivered: 2, In: []byte("a"), Finished: true},
				{ID: 8, Finished: true, EndAcked: true, OutStart: 1 << 40},
			},
		},
		{
			Gateway: make([]byte, idBytes), Guest: make([]byte, idBytes), Last: 1,
			Streams: []handedOver{{ID: 1, PeerEnded: true}},
		},
		{
			Gateway: make([]byte, idBytes), Guest: make([]byte, idBytes), Last: 1,
			Streams: []handedOver{{ID: 1, Delivered: 1<<64 - 1, In: []byte("a"), Out: []byte("b"), OutStart: 1<<64 - 1}},
		},
	} {
		text, err := json.Marshal(each)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	server := listenLocal(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		given := &handover{}
		if json.Unmarshal(text, given) != nil || given.check(len(given.Streams)) != nil {
			return
		}
		var inner []*net.TCPConn
		for range given.Streams {
			conn, err := net.Dial("tcp", server.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			theirs, err := server.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer theirs.Close()
			inner = append(inner, conn.(*net.TCPConn))
		}
		s := newSession([idBytes]byte{}, false)
		s.eof = always
		if err := s.thaw(given.Streams, inner); err != nil {
			t.Fatal(err)
		}
		found, handed := s.freeze()
		for _, each := range handed {
			each.Close()
		}
		again := &handover{Gateway: given.Gateway, Guest: given.Guest, Last: given.Last, Streams: found}
		if err := again.check(len(handed)); err != nil {
			t.Fatal(err)
		}
		for _, was := range given.Streams {
			for _, is := range found {
				whole := is.Delivered + uint64(len(is.In))
				same := is.ID != was.ID || is.Received == was.Received && is.OutStart == was.OutStart &&
					bytes.Equal(is.Out, was.Out) && whole >= was.Delivered+uint64(len(was.In)) && whole <= is.Received
				if !same {
					t.Fatalf("stream %d was %+v and is %+v", was.ID, was, is)
				}
			}
		}
	})
}

// FuzzImages unpacks any bytes: plain files of that folder come of it, no more than agreed, or an error.
func FuzzImages(f *testing.F) {
	const most = 4096
	for _, each := range []tar.Header{
		{Name: "pages-1.img", Size: 9}, {Name: "../out", Size: 1}, {Name: "a/b", Size: 1}, {Name: ".hidden", Size: 1},
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, {Name: "large", Size: most + 1},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "pages-1.img"}, {Name: "device", Typeflag: tar.TypeChar},
	} {
		each := each
		var made bytes.Buffer
		packed := tar.NewWriter(&made)
		each.Mode = 0o600
		if err := packed.WriteHeader(&each); err != nil {
			f.Fatal(err)
		}
		_, _ = packed.Write(make([]byte, each.Size))
		_ = packed.Close() // what lacks is of interest, too
		f.Add(made.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		above := t.TempDir()
		folder := filepath.Join(above, "images")
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		_ = unpack(folder, bytes.NewReader(b), most)
		beside, err := os.ReadDir(above)
		if err != nil || len(beside) != 1 {
			t.Fatalf("%v: %v", beside, err)
		}
		found, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, each := range found {
			if !each.Type().IsRegular() {
				t.Errorf("%v is no plain file", each)
			}
		}
		if sum, err := folderBytes(folder); err != nil || sum > most {
			t.Errorf("%d bytes: %v", sum, err)
		}
	})
}
