// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"math/rand"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A couple is a guest's session and a gateway's, carried by socket pairs that a test cuts.
type couple struct {
	t        *testing.T
	guest    *session
	gateway  *session
	identity [idBytes]byte // of the gateway
	seen     [idBytes]byte
	server   net.Listener
	door     net.Listener
	mu       sync.Mutex
	now      net.Conn
	stopped  chan struct{}
	links    sync.WaitGroup
	paused   bool
	killed   int32 // atomic: the server's process is on its way to its end
}

// newCouple joins them; serve gets each connection that reaches the server.
func newCouple(t *testing.T, serve func(*net.TCPConn)) *couple {
	c := &couple{t: t, stopped: make(chan struct{}), identity: [idBytes]byte{7}}
	c.server = listenLocal(t)
	c.door = listenLocal(t)
	c.guest = newSession([idBytes]byte{1}, true)
	c.gateway = c.newGateway()
	go func() {
		for {
			conn, err := c.server.Accept()
			if err != nil {
				return
			}
			go serve(conn.(*net.TCPConn))
		}
	}()
	go func() {
		for {
			conn, err := c.door.Accept()
			if err != nil {
				return
			}
			if c.guest.add(conn.(*net.TCPConn), 0) != nil {
				conn.Close()
			}
		}
	}()
	c.links.Add(1)
	go c.carry()
	t.Cleanup(c.stop)
	return c
}

func always() bool { return true }

func listenLocal(t testing.TB) net.Listener {
	made, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { made.Close() })
	return made
}

func (c *couple) newGateway() *session {
	made := newSession([idBytes]byte{}, false)
	made.eof = func() bool { return atomic.LoadInt32(&c.killed) == 0 }
	made.accept = func(st *stream) {
		conn, err := net.Dial("tcp", c.server.Addr().String())
		made.mu.Lock()
		if err != nil {
			made.drop(st, true)
		}
		made.mu.Unlock()
		if err == nil {
			made.start(st, conn.(*net.TCPConn))
		}
	}
	return made
}

// carry makes one link after the other.
func (c *couple) carry() {
	defer c.links.Done()
	for {
		select {
		case <-c.stopped:
			return
		default:
		}
		c.mu.Lock()
		paused := c.paused
		c.mu.Unlock()
		if paused {
			time.Sleep(time.Millisecond)
			continue
		}
		mine, theirs := sockets(c.t)
		c.mu.Lock()
		c.now = mine
		gateway := c.gateway
		c.mu.Unlock()
		c.links.Add(1)
		go func() {
			defer c.links.Done()
			defer theirs.Close()
			if _, payload, err := readFrame(theirs, hello); err == nil {
				_ = gateway.welcome(theirs, c.identity, payload, func() bool {
					c.mu.Lock()
					defer c.mu.Unlock()
					return c.now == mine // as a gateway asks: what an older link said comes too late
				})
			}
		}()
		_ = c.guest.greet(mine, &c.seen)
		mine.Close()
	}
}

// sockets returns both ends of a connection that has no port: what a test cuts by the hundred leaves none in use.
func sockets(t testing.TB) (net.Conn, net.Conn) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for at, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		if ends[at], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	return ends[0], ends[1]
}

// cut breaks the link that is there, if any.
func (c *couple) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil {
		c.now.Close()
	}
}

func (c *couple) pause(on bool) {
	c.mu.Lock()
	c.paused = on
	c.mu.Unlock()
}

func (c *couple) stop() {
	select {
	case <-c.stopped:
		return
	default:
	}
	close(c.stopped)
	c.door.Close()
	c.server.Close()
	c.cut()
	c.guest.end()
	c.gateway.end()
	c.links.Wait()
}

func (c *couple) dial() *net.TCPConn {
	conn, err := net.Dial("tcp", c.door.Addr().String())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	return conn.(*net.TCPConn)
}

func echo(conn *net.TCPConn) {
	defer conn.Close()
	if _, err := io.Copy(conn, conn); err == nil {
		_ = conn.CloseWrite()
	}
}

// noise is the same for each seed; what comes back is compared with it.
func noise(seed int64, n int) []byte {
	made := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(made)
	return made
}

// exchange sends noise and its end, and compares what comes back.
func exchange(conn *net.TCPConn, seed int64, n int) error {
	sent := noise(seed, n)
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		if err == nil {
			err = conn.CloseWrite()
		}
		failed <- err
	}()
	got, err := io.ReadAll(conn)
	if err == nil {
		err = <-failed
	}
	if err == nil && !bytes.Equal(got, sent) {
		err = errors.New("other bytes came back")
	}
	return err
}

func (c *couple) streams() (guest, gateway int) {
	c.guest.mu.Lock()
	guest = len(c.guest.streams)
	c.guest.mu.Unlock()
	c.gateway.mu.Lock()
	gateway = len(c.gateway.streams)
	c.gateway.mu.Unlock()
	return
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not so after 20 s: %s", what)
		}
	}
}

func (c *couple) forgotten() {
	c.t.Helper()
	eventually(c.t, "all streams are forgotten", func() bool {
		guest, gateway := c.streams()
		return guest == 0 && gateway == 0
	})
}

func TestStreamsCarryAllBytesBothWaysAndAreForgotten(t *testing.T) {
	c := newCouple(t, echo)
	var all sync.WaitGroup
	for n, size := range []int{0, 1, headerBytes, recordBytes, mostDataBytes + 1, 3*windowBytes + 5} {
		all.Add(1)
		go func(seed int64, size int) {
			defer all.Done()
			if err := exchange(c.dial(), seed, size); err != nil {
				t.Errorf("%d bytes: %v", size, err)
			}
		}(int64(n), size)
	}
	all.Wait()
	c.forgotten()
}

func TestAServerThatSpeaksFirstIsHeard(t *testing.T) {
	c := newCouple(t, func(conn *net.TCPConn) { _, _ = conn.Write([]byte("hello")) })
	var got [5]byte
	if _, err := io.ReadFull(c.dial(), got[:]); err != nil || string(got[:]) != "hello" {
		t.Fatal(err, got)
	}
}

func TestStreamsGoOnWhereEachCutLinkEnded(t *testing.T) {
	c := newCouple(t, echo)
	size := 8 * windowBytes
	if testing.Short() {
		size = 2 * windowBytes
	}
	over := make(chan struct{})
	go func() {
		draw := rand.New(rand.NewSource(3))
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Duration(draw.Intn(8)) * time.Millisecond):
				c.cut()
			}
		}
	}()
	var all sync.WaitGroup
	for n := 0; n < 6; n++ {
		all.Add(1)
		go func(seed int64) {
			defer all.Done()
			if err := exchange(c.dial(), seed, size); err != nil {
				t.Error(err)
			}
		}(int64(n))
	}
	all.Wait()
	close(over)
	c.forgotten()
	if c.guest.carried() < 3 {
		t.Errorf("%d links only: no resume was tested", c.guest.carried())
	}
}

func TestAStreamThatBeginsWithoutALinkWaitsForOne(t *testing.T) {
	c := newCouple(t, echo)
	c.pause(true)
	c.cut()
	done := make(chan error)
	resumes := c.guest.carried()
	for n := int64(0); n < 3; n++ {
		conn := c.dial()
		go func(seed int64) { done <- exchange(conn, seed, 100_000) }(n)
	}
	time.Sleep(20 * time.Millisecond)
	c.pause(false)
	for n := 0; n < 3; n++ {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if links := c.guest.carried() - resumes; links != 1 {
		t.Errorf("%d links for what one carries", links)
	}
}

func TestAProgramThatReadsNothingHoldsNoOtherAndNoMemory(t *testing.T) {
	begun := make(chan struct{}, 1)
	c := newCouple(t, func(conn *net.TCPConn) {
		var first [1]byte
		if _, err := io.ReadFull(conn, first[:]); err != nil {
			return
		}
		if first[0] != 's' { // its noise begins with another byte
			_, _ = conn.Write(first[:])
			echo(conn)
			return
		}
		begun <- struct{}{}
		much := make([]byte, mostDataBytes)
		for {
			if _, err := conn.Write(much); err != nil {
				return
			}
		}
	})
	deaf := c.dial()
	if _, err := deaf.Write([]byte{'s'}); err != nil {
		t.Fatal(err)
	}
	<-begun
	time.Sleep(50 * time.Millisecond)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	seed := int64(1)
	for noise(seed, 1)[0] == 's' {
		seed++
	}
	for n := 0; n < 5; n++ {
		c.cut()
		if err := exchange(c.dial(), seed, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	c.gateway.mu.Lock()
	for _, st := range c.gateway.streams {
		if kept := st.out.end - st.out.start; kept > windowBytes {
			t.Errorf("%d bytes are kept", kept)
		}
	}
	c.gateway.mu.Unlock()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8*windowBytes {
		t.Errorf("%d bytes more", grown)
	}
}

func resetBy(conn net.Conn) bool {
	_, err := io.Copy(io.Discard, conn)
	return err != nil && !errors.Is(err, io.EOF)
}

func TestAServerThatResetsResetsTheProgram(t *testing.T) {
	c := newCouple(t, func(conn *net.TCPConn) {
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.SetLinger(0)
		conn.Close()
	})
	conn := c.dial()
	if _, err := conn.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if !resetBy(conn) {
		t.Error("no reset")
	}
	c.forgotten()
}

func TestAServerThatDiedResetsAllProgramsInPlaceOfAnEnd(t *testing.T) {
	c := newCouple(t, func(conn *net.TCPConn) {
		time.Sleep(20 * time.Millisecond)
		conn.Close() // as the kernel does for a process that was killed
	})
	atomic.StoreInt32(&c.killed, 1)
	if !resetBy(c.dial()) {
		t.Error("an end, as if all were well")
	}
	c.forgotten()
}

func TestAnotherGatewayOfTheLeaseResetsWhatTheOldOneHad(t *testing.T) {
	c := newCouple(t, echo)
	conn := c.dial()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	var got [1]byte
	if _, err := io.ReadFull(conn, got[:]); err != nil {
		t.Fatal(err)
	}
	old := c.gateway
	c.pause(true)
	c.mu.Lock()
	c.gateway, c.identity = c.newGateway(), [idBytes]byte{8}
	c.mu.Unlock()
	old.end()
	c.cut()
	c.pause(false)
	if !resetBy(conn) {
		t.Error("no reset: stale bytes could come")
	}
	if err := exchange(c.dial(), 1, 1000); err != nil {
		t.Error(err)
	}
}

func TestAnotherGuestOfTheLeaseEndsWhatTheOldOneHad(t *testing.T) {
	ended := make(chan error, 1)
	c := newCouple(t, func(conn *net.TCPConn) {
		_, err := io.Copy(conn, conn)
		ended <- err
	})
	conn := c.dial()
	if err := exchangeByte(conn); err != nil {
		t.Fatal(err)
	}
	c.pause(true)
	c.cut()
	mine, theirs := sockets(t)
	defer mine.Close()
	go func() {
		if _, payload, err := readFrame(theirs, hello); err == nil {
			_ = c.gateway.welcome(theirs, c.identity, payload, always)
		}
	}()
	other := newSession([idBytes]byte{2}, true)
	go func() { _ = other.greet(mine, new([idBytes]byte)) }()
	if err := <-ended; err == nil {
		t.Error("the server saw an end, not a reset")
	}
}

func exchangeByte(conn net.Conn) error {
	got := []byte{'x'}
	if _, err := conn.Write(got); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, got)
	return err
}

func TestMoreStreamsThanThereMayBeAreRefused(t *testing.T) {
	c := newCouple(t, echo)
	for n := 0; n < mostStreams; n++ {
		if err := exchangeByte(c.dial()); err != nil {
			t.Fatal(n, err)
		}
	}
	if err := exchangeByte(c.dial()); err == nil {
		t.Error("one more was taken")
	}
}

func TestStreamsOfAnyNumberAreNamedInOrderAtOnce(t *testing.T) {
	s := newSession([idBytes]byte{}, false)
	for _, id := range []uint32{1<<32 - 1, 7, 1 << 31} {
		s.newStream(id, 0)
	}
	s.last = 1<<32 - 1
	begun := time.Now()
	found := s.known()
	if took := time.Since(begun); took > time.Second {
		t.Errorf("a guest that skips numbers has the gateway count them for %v", took)
	}
	if len(found) != 3 || found[0].stream != 7 || found[1].stream != 1<<31 || found[2].stream != 1<<32-1 {
		t.Errorf("%v", found)
	}
}

// What a peer that keeps no rule can send after its hello: each ends the link, and nothing else.
func TestAFrameThatCannotBeEndsTheLink(t *testing.T) {
	begins := frame(header{kind: open, stream: 1}, nil)
	for name, sent := range map[string][]byte{
		"data of no stream":    frame(header{kind: data, stream: 1}, []byte{1}),
		"a stream twice":       append(append([]byte(nil), begins...), begins...),
		"a gap":                append(append([]byte(nil), begins...), frame(header{kind: data, stream: 1, offset: 5}, []byte{1})...),
		"what was never sent":  append(append([]byte(nil), begins...), frame(header{kind: ack, stream: 1, ack: 1}, nil)...),
		"another exchange":     frame(header{kind: challenge}, make([]byte, nonceBytes)),
		"bytes after the end":  append(append(append([]byte(nil), begins...), frame(header{kind: end, stream: 1}, nil)...), frame(header{kind: data, stream: 1, offset: 1}, []byte{1})...),
		"more than the window": overWindow(),
	} {
		gateway := newSession([idBytes]byte{}, false)
		gateway.accept = func(*stream) {} // the server never takes it
		mine, theirs := sockets(t)
		over := make(chan error, 1)
		go func() {
			_, payload, err := readFrame(theirs, hello)
			if err == nil {
				err = gateway.welcome(theirs, [idBytes]byte{1}, payload, always)
			}
			over <- err
		}()
		_, _ = mine.Write(frame(header{kind: hello}, putPlaces([idBytes]byte{}, nil)))
		if _, _, err := readFrame(mine, welcome); err != nil {
			t.Fatal(err)
		}
		go func() {
			for next := sent; ; next = frame(header{kind: ping}, nil) { // or its silence ends the link
				if _, err := mine.Write(next); err != nil {
					return
				}
				time.Sleep(beat / 2)
			}
		}()
		select {
		case err := <-over:
			if errors.Is(err, io.EOF) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the link goes on", name)
		}
		mine.Close()
		gateway.end()
	}
}

func overWindow() []byte {
	made := frame(header{kind: open, stream: 1}, nil)
	for offset := uint64(0); offset <= windowBytes; offset += mostDataBytes {
		made = append(made, frame(header{kind: data, stream: 1, offset: offset}, make([]byte, mostDataBytes))...)
	}
	return made
}

// FuzzSession has a gateway's session, whose server echoes, obey any bytes after a hello: it ends the link or goes on.
func FuzzSession(f *testing.F) {
	draw := rand.New(rand.NewSource(2))
	for n := 0; n < 40; n++ {
		var seed []byte
		seed = append(seed, frame(header{kind: open, stream: 1}, nil)...)
		for m := 0; m < 4; m++ {
			seed = append(seed, randomFrame(draw)...)
		}
		f.Add(seed)
	}
	server := listenLocal(f)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go echo(conn.(*net.TCPConn))
		}
	}()
	f.Fuzz(func(t *testing.T, b []byte) {
		gateway := newSession([idBytes]byte{}, false)
		gateway.accept = func(st *stream) {
			if conn, err := net.Dial("tcp", server.Addr().String()); err == nil {
				gateway.start(st, conn.(*net.TCPConn))
			}
		}
		mine, theirs := net.Pipe()
		over := make(chan struct{})
		go func() {
			_ = gateway.welcome(theirs, [idBytes]byte{1}, make([]byte, idBytes), always)
			close(over)
		}()
		go func() { _, _ = io.Copy(io.Discard, mine) }()
		_, _ = mine.Write(b)
		mine.Close()
		<-over
		gateway.mu.Lock()
		for _, st := range gateway.streams {
			if st.in.end-st.in.start > windowBytes || st.out.end-st.out.start > windowBytes {
				t.Errorf("stream %d keeps more than its window", st.id)
			}
		}
		gateway.mu.Unlock()
		gateway.end()
	})
}

func TestAMillionRandomFramesAreObeyedOrRefused(t *testing.T) {
	count := 1_000_000
	if testing.Short() {
		count = 20_000
	}
	draw := rand.New(rand.NewSource(5))
	refusedFrames := 0
	var s *session
	for n := 0; n < count; n++ {
		if n%1000 == 0 {
			s = newSession([idBytes]byte{}, n%2000 == 0)
			s.accept = func(*stream) {}
			s.last = 70
			for id := uint32(1); id < 70; id += 3 {
				s.newStream(id, 0).out.end = uint64(draw.Intn(1 << 24))
			}
		}
		h, err := parse(append(randomFrame(draw), make([]byte, headerBytes)...))
		if err == nil {
			_, err = s.take(h)
		}
		if err != nil {
			refusedFrames++
		}
	}
	if refusedFrames == 0 || refusedFrames == count {
		t.Errorf("%d of %d refused", refusedFrames, count)
	}
}
