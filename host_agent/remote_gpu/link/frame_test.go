// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math/rand"
	"os"
	"testing"
)

// What both codecs say of a frame's bytes; tests/support/link_frames.py has the same shape.
type verdict struct {
	Bytes  string       `json:"bytes"`
	Fields *[6]uint64   `json:"fields"` // kind, port, stream, offset, ack, length; null: refused
	Places *[][2]uint64 `json:"places"` // of a hello or welcome; null: refused, or of another kind
}

func verdictOf(b []byte) verdict {
	found := verdict{Bytes: hex.EncodeToString(b)}
	h, payload, err := readFrame(bytes.NewReader(b), challenge, answer, offers, admit, admitted, refused, hello, welcome,
		open, data, ack, end, reset, ping)
	if err != nil {
		return found
	}
	found.Fields = &[6]uint64{uint64(h.kind), uint64(h.port), uint64(h.stream), h.offset, h.ack, uint64(h.length)}
	if h.kind == hello || h.kind == welcome {
		if _, known, err := places(payload); err == nil {
			pairs := make([][2]uint64, 0, len(known))
			for _, each := range known {
				pairs = append(pairs, [2]uint64{uint64(each.stream), each.received})
			}
			found.Places = &pairs
		}
	}
	return found
}

// randomFrame returns a frame that keeps all rules, or one with a few bytes changed.
func randomFrame(draw *rand.Rand) []byte {
	h := header{kind: kind(1 + draw.Intn(len(rules)))}
	r := rules[h.kind]
	if r.stream {
		h.stream = 1 + uint32(draw.Int31n(70))
	}
	if r.port {
		h.port = uint16(draw.Intn(1 << 16))
	}
	if r.offset {
		h.offset = draw.Uint64() >> draw.Intn(64)
	}
	if r.ack {
		h.ack = draw.Uint64() >> draw.Intn(64)
	}
	most := r.most
	if most > 300 {
		most = 300
	}
	length := r.least
	if most > r.least {
		length += uint32(draw.Intn(int(most - r.least)))
	}
	if r.step != 0 {
		length -= (length - r.least) % r.step
	}
	payload := make([]byte, length)
	draw.Read(payload)
	if h.kind == hello || h.kind == welcome {
		var known []place
		stream := uint32(0)
		for range payload[idBytes:][:(length-idBytes)/placeBytes] {
			stream += 1 + uint32(draw.Intn(3))
			known = append(known, place{stream, draw.Uint64() >> draw.Intn(64)})
		}
		payload = putPlaces([idBytes]byte{1}, known)
	}
	made := frame(h, payload)
	for draw.Intn(2) == 0 {
		made[draw.Intn(len(made))] = byte(draw.Intn(256))
	}
	if draw.Intn(10) == 0 {
		made = made[:draw.Intn(len(made)+1)]
	}
	return made
}

func TestAFrameIsReadAsItWasWritten(t *testing.T) {
	for k, r := range rules {
		h := header{kind: k}
		if r.stream {
			h.stream = 7
		}
		payload := bytes.Repeat([]byte{9}, int(r.least))
		found, got, err := readFrame(bytes.NewReader(frame(h, payload)), k)
		if err != nil || !bytes.Equal(got, payload) {
			t.Errorf("kind %d: %v", k, err)
		}
		h.length = r.least
		if found != h {
			t.Errorf("kind %d: %v, not %v", k, found, h)
		}
	}
}

func TestAFrameThatBreaksARuleIsRefused(t *testing.T) {
	for name, h := range map[string]header{
		"no stream":            {kind: data, length: 1},
		"a stream too many":    {kind: ping, stream: 1},
		"a port too many":      {kind: data, stream: 1, port: 1, length: 1},
		"an offset too many":   {kind: ack, stream: 1, offset: 1},
		"an ack too many":      {kind: open, stream: 1, ack: 1},
		"too long":             {kind: data, stream: 1, length: mostDataBytes + 1},
		"too short":            {kind: challenge, length: nonceBytes - 1},
		"no whole place":       {kind: hello, length: idBytes + 1},
		"unknown":              {kind: ping + 1},
		"none":                 {},
		"longer than a memory": {kind: data, stream: 1, length: 1<<32 - 1},
	} {
		var b [headerBytes]byte
		h.put(b[:])
		if _, err := parse(b[:]); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
	made := frame(header{kind: ping}, nil)
	made[1]++
	if _, err := parse(made); err == nil {
		t.Error("another version: not refused")
	}
}

func TestPlacesAreInOrder(t *testing.T) {
	if _, _, err := places(putPlaces([idBytes]byte{}, []place{{2, 0}, {2, 5}})); err == nil {
		t.Error("two places of one stream: not refused")
	}
}

// With LINK_FRAMES_READ, a file of verdicts of the other codec, ours has to agree; with LINK_FRAMES_WRITE ours are
// written for it. tests/functional/host_agent/test_link.py runs both.
func TestBothCodecsAgree(t *testing.T) {
	if name := os.Getenv("LINK_FRAMES_READ"); name != "" {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		count := 0
		for ; lines.Scan(); count++ {
			var theirs verdict
			if err := json.Unmarshal(lines.Bytes(), &theirs); err != nil {
				t.Fatal(err)
			}
			b, err := hex.DecodeString(theirs.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			ours, _ := json.Marshal(verdictOf(b))
			again, _ := json.Marshal(theirs)
			if !bytes.Equal(ours, again) {
				t.Fatalf("ours %s, theirs %s", ours, again)
			}
		}
		if lines.Err() != nil || count == 0 {
			t.Fatalf("%d frames: %v", count, lines.Err())
		}
	}
	if name := os.Getenv("LINK_FRAMES_WRITE"); name != "" {
		file, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		draw, out := rand.New(rand.NewSource(19)), json.NewEncoder(file)
		for n := 0; n < 10_000; n++ {
			if err := out.Encode(verdictOf(randomFrame(draw))); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func FuzzFrame(f *testing.F) {
	draw := rand.New(rand.NewSource(1))
	for n := 0; n < 50; n++ {
		f.Add(randomFrame(draw))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerBytes {
			return
		}
		h, err := parse(b)
		if err != nil {
			return
		}
		var again [headerBytes]byte
		h.put(again[:])
		if !bytes.Equal(again[:], b[:headerBytes]) {
			t.Errorf("%x became %x", b[:headerBytes], again)
		}
	})
}
