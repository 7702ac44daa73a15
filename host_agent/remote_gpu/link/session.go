// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// What an end keeps of a stream each way: sent and not acknowledged, and come and not delivered. It covers what is
	// on its way at 2 GB/s and a millisecond.
	windowBytes = 2 << 20
	// Acknowledged without data on its way back: often enough that the peer's window never closes meanwhile.
	ackBytes = windowBytes / 4

	beat           = time.Second
	silentBeats    = 5
	handshakeLimit = 5 * time.Second
)

// A deadline that has passed: who waits for a connection returns.
var longAgo = time.Unix(1, 0)

// A pipe is a connection: of TCP, TLS, vsock or a Unix socket.
type pipe interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
}

// A link is what carries a session now. When it breaks, the session waits for another one.
type link struct {
	pipe  pipe
	write sync.Mutex // held while frames are written; taken before the session's own
	joint []byte     // header and first bytes of a frame: together they fill a record of TLS
	sent  uint64     // frames, counted with write held
	heard uint64     // reads, atomic
	done  chan struct{}
}

func newLink(p pipe) *link {
	return &link{pipe: p, joint: make([]byte, 0, recordBytes), done: make(chan struct{})}
}

// A TLS record holds this much.
const recordBytes = 16 << 10

// put writes one frame; write is held.
func (l *link) put(h header, payload []byte) error {
	l.sent++
	h.length = uint32(len(payload))
	l.joint = l.joint[:headerBytes]
	h.put(l.joint)
	first := least(recordBytes-headerBytes, uint64(len(payload)))
	l.joint = append(l.joint, payload[:first]...)
	if first == uint64(len(payload)) {
		_, err := l.pipe.Write(l.joint)
		return err
	}
	return writeBoth(l.pipe, l.joint, payload[first:])
}

// A stream is one connection of a program in the guest, and at the gateway the one to the server that stands for it.
// All but what its own goroutines hold is guarded by the session's lock.
type stream struct {
	id    uint32
	port  uint16
	inner *net.TCPConn // nil at the gateway until the server has taken the connection
	raw   syscall.RawConn
	gone  bool

	// From inner to the peer.
	out      ring
	next     uint64 // offset of the next byte for this link
	finished bool   // inner sent its last byte
	endSent  bool   // on this link
	endAcked bool
	room     *sync.Cond

	// From the peer to inner.
	received  uint64 // offset of the next byte, the end counts as one
	in        ring   // what inner has not taken yet; delivered up to its start
	delivered uint64 // the end counts as one
	ackSent   uint64
	ackDue    bool
	writing   bool // a goroutine writes to inner without the lock
	peerEnded bool
	more      *sync.Cond

	busy sync.WaitGroup // pump and drain
}

// A session is one end of all streams of a lease. It outlives the links that carry it.
type session struct {
	mu      sync.Mutex
	due     *sync.Cond // there is something for the peer beside data
	id      [idBytes]byte
	guest   bool
	streams map[uint32]*stream
	link    *link
	last    uint32 // newest stream
	opened  uint32 // newest stream that the peer knows, or does when it has read what was sent on this link
	resets  []uint32
	ended   bool
	frozen  bool // all is about to be handed over: pump and drain return

	attaching sync.Mutex
	accept    func(*stream) // gateway: connects a stream to the server
	eof       func() bool   // gateway: whether the server is alive, of which a connection has ended
	resumes   uint64        // atomic
	moved     uint64        // bytes that came from connections and went to them; atomic
}

func newSession(id [idBytes]byte, guest bool) *session {
	s := &session{id: id, guest: guest, streams: map[uint32]*stream{}}
	s.due = sync.NewCond(&s.mu)
	s.eof = func() bool { return true }
	return s
}

func (s *session) newStream(id uint32, port uint16) *stream {
	st := &stream{id: id, port: port}
	st.room, st.more = sync.NewCond(&s.mu), sync.NewCond(&s.mu)
	s.streams[id] = st
	return st
}

// add makes a stream of a program's connection.
func (s *session) add(inner *net.TCPConn, port uint16) error {
	s.mu.Lock()
	if s.ended || len(s.streams) == mostStreams {
		s.mu.Unlock()
		return fmt.Errorf("%d streams are open", mostStreams)
	}
	s.last++
	st := s.newStream(s.last, port)
	s.mu.Unlock()
	s.start(st, inner)
	return nil
}

// start has a stream's bytes carried to its connection and from there.
func (s *session) start(st *stream, inner *net.TCPConn) {
	raw, err := inner.SyscallConn()
	s.mu.Lock()
	if err != nil || st.gone || s.frozen {
		abort(inner)
		s.drop(st, true)
		s.mu.Unlock()
		return
	}
	st.inner, st.raw = inner, raw
	st.out.kept = make([]byte, windowBytes)
	st.more.Signal()
	s.work(st)
	s.mu.Unlock()
}

// work begins to carry the bytes of a stream, as far as its ends have not passed.
func (s *session) work(st *stream) {
	if !st.peerEnded || st.delivered < st.received {
		st.busy.Add(1)
		go func() {
			defer st.busy.Done()
			s.drain(st)
		}()
	}
	if !st.finished {
		st.busy.Add(1)
		go func() {
			defer st.busy.Done()
			s.pump(st)
		}()
	}
}

// pump reads what the connection sends, and sends it on as long as there is a link and room to keep it.
func (s *session) pump(st *stream) {
	s.flush(st)
	for {
		s.mu.Lock()
		for !st.gone && !s.frozen && len(st.out.free()) == 0 {
			st.room.Wait()
		}
		if st.gone || s.frozen {
			s.mu.Unlock()
			return
		}
		slot := st.out.free()
		s.mu.Unlock()
		n, err := st.inner.Read(slot)
		if err != nil && !s.eof() {
			s.dropAll()
			return
		}
		s.mu.Lock()
		if st.gone {
			s.mu.Unlock()
			return
		}
		st.out.end += uint64(n)
		atomic.AddUint64(&s.moved, uint64(n))
		if s.frozen && errors.Is(err, os.ErrDeadlineExceeded) {
			s.mu.Unlock()
			return
		}
		if errors.Is(err, io.EOF) {
			st.finished = true
			s.forgetIfOver(st)
		} else if err != nil {
			s.drop(st, true)
		}
		s.mu.Unlock()
		s.flush(st)
		if err != nil {
			return
		}
	}
}

// flush sends all of a stream that is to be sent; before it the streams that the gateway does not know yet.
func (s *session) flush(st *stream) {
	for {
		s.mu.Lock()
		l := s.link
		s.mu.Unlock()
		if l == nil {
			return
		}
		more, err := s.flushOnce(l, st)
		if err != nil {
			l.pipe.Close()
			return
		}
		if !more {
			return
		}
	}
}

func (s *session) flushOnce(l *link, st *stream) (more bool, err error) {
	l.write.Lock()
	defer l.write.Unlock()
	s.mu.Lock()
	if s.link != l {
		s.mu.Unlock()
		return true, nil
	}
	var opens []header
	for s.guest && s.opened < s.last {
		s.opened++
		if each, is := s.streams[s.opened]; is {
			opens = append(opens, header{kind: open, stream: each.id, port: each.port})
		}
	}
	h := header{stream: st.id, offset: st.next, ack: st.delivered}
	var piece []byte
	switch {
	case st.gone:
	case st.next < st.out.end:
		h.kind, piece = data, st.out.from(st.next)
		st.next += uint64(len(piece))
	case st.finished && !st.endSent:
		h.kind, st.endSent = end, true
	}
	if h.kind != 0 {
		s.acknowledged(st)
	}
	s.mu.Unlock()
	for _, each := range opens {
		if err := l.put(each, nil); err != nil {
			return false, err
		}
	}
	if h.kind == 0 {
		return false, nil
	}
	return true, l.put(h, piece)
}

// acknowledged notes that all that was delivered is being acknowledged.
func (s *session) acknowledged(st *stream) {
	st.ackSent, st.ackDue = st.delivered, false
	s.forgetIfOver(st)
}

// control sends what is due beside data: it never waits for the one who reads.
func (s *session) control(l *link) {
	for {
		s.mu.Lock()
		var frames []header
		for s.link == l {
			for _, id := range s.resets {
				frames = append(frames, header{kind: reset, stream: id})
			}
			s.resets = nil
			for _, st := range s.streams {
				if st.ackDue {
					frames = append(frames, header{kind: ack, stream: st.id, ack: st.delivered})
					s.acknowledged(st)
				}
			}
			if frames != nil {
				break
			}
			s.due.Wait()
		}
		over := s.link != l
		s.mu.Unlock()
		if over {
			return
		}
		if err := l.putAll(frames); err != nil {
			l.pipe.Close()
			return
		}
	}
}

func (l *link) putAll(frames []header) error {
	l.write.Lock()
	defer l.write.Unlock()
	for _, h := range frames {
		if err := l.put(h, nil); err != nil {
			return err
		}
	}
	return nil
}

// watch has something sent each beat, and closes a link on which nothing comes.
func (s *session) watch(l *link) {
	ticks := time.NewTicker(beat)
	defer ticks.Stop()
	var heard, sent uint64
	for silent := 0; silent < silentBeats; {
		select {
		case <-l.done:
			return
		case <-ticks.C:
		}
		if now := atomic.LoadUint64(&l.heard); now != heard {
			heard, silent = now, -1
		}
		silent++
		// Who holds the lock writes, or waits for a peer that reads nothing: both need no ping.
		if l.write.TryLock() {
			if l.sent == sent {
				_ = l.put(header{kind: ping}, nil) // the reader sees what is wrong with the pipe
			}
			sent = l.sent
			l.write.Unlock()
		}
	}
	l.pipe.Close()
}

// drain writes to the connection what could not be written at once, and its end.
func (s *session) drain(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for !st.gone && !s.frozen && (st.writing || st.in.start == st.in.end && !st.peerEnded) {
			st.more.Wait()
		}
		if st.gone || s.frozen {
			return
		}
		if st.in.start == st.in.end {
			if err := st.inner.CloseWrite(); err != nil {
				s.drop(st, true)
				return
			}
			st.delivered++
			st.ackDue = true
			s.due.Broadcast()
			return
		}
		piece := st.in.from(st.in.start)
		st.writing = true
		s.mu.Unlock()
		n, err := st.inner.Write(piece)
		s.mu.Lock()
		st.writing = false
		if s.frozen && errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		if err != nil {
			s.drop(st, true)
			return
		}
		st.in.start += uint64(n)
		s.delivered(st, uint64(n))
	}
}

func (s *session) delivered(st *stream, n uint64) {
	st.delivered += n
	atomic.AddUint64(&s.moved, n)
	if !st.ackDue && st.delivered-st.ackSent >= ackBytes {
		st.ackDue = true
		s.due.Broadcast()
	}
}

// deliver takes bytes of a stream that came: written at once as far as the connection takes them, else kept.
func (s *session) deliver(st *stream, chunk []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.gone {
		return nil
	}
	if st.received += uint64(len(chunk)); st.received-st.delivered > windowBytes {
		return fmt.Errorf("stream %d: more than the window", st.id)
	}
	st.in.end += uint64(len(chunk))
	if st.raw != nil && st.in.start+uint64(len(chunk)) == st.in.end && !st.writing {
		st.writing = true
		s.mu.Unlock()
		n, err := tryWrite(st.raw, chunk)
		s.mu.Lock()
		st.writing = false
		if err != nil {
			s.drop(st, true)
			return nil
		}
		st.in.start += uint64(n)
		s.delivered(st, uint64(n))
		chunk = chunk[n:]
	}
	if len(chunk) > 0 {
		st.in.put(chunk)
		st.more.Signal()
	}
	return nil
}

// tryWrite writes what the socket takes now.
func tryWrite(raw syscall.RawConn, chunk []byte) (n int, err error) {
	failed := raw.Write(func(fd uintptr) bool {
		n, err = syscall.Write(int(fd), chunk)
		return true
	})
	if failed != nil {
		return 0, failed
	}
	if err == syscall.EAGAIN || err == syscall.EINTR {
		return 0, nil
	}
	return n, err
}

// drop ends a stream at once, towards its connection by a reset. The lock is held.
func (s *session) drop(st *stream, tell bool) {
	if st.gone {
		return
	}
	st.gone = true
	delete(s.streams, st.id)
	if st.inner != nil {
		abort(st.inner)
	}
	if tell && s.link != nil {
		s.resets = append(s.resets, st.id)
		s.due.Broadcast()
	}
	st.room.Broadcast()
	st.more.Broadcast()
}

// abort closes a connection so that its other end sees a reset, not an end.
func abort(inner *net.TCPConn) {
	_ = inner.SetLinger(0) // a socket that is closed already
	inner.Close()
}

// dropAll ends all streams: the server is gone, or the guest's end is another one.
func (s *session) dropAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		s.drop(st, true)
	}
}

// forgetIfOver forgets a stream of which both ends have been delivered and acknowledged. The lock is held.
func (s *session) forgetIfOver(st *stream) {
	if st.endAcked && st.peerEnded && st.ackSent == st.received && !st.gone {
		st.gone = true
		delete(s.streams, st.id)
		st.inner.Close()
		st.room.Broadcast()
		st.more.Broadcast()
	}
}

// lost takes a peer's word that it has no such stream. The lock is held.
//
// A peer forgets a stream when both ends have come; of its last acknowledgement it cannot know whether it came, too.
func (s *session) lost(st *stream) {
	if st.endSent && st.peerEnded {
		st.endAcked = true
		s.forgetIfOver(st)
		return
	}
	s.drop(st, false)
}

// known returns how much of each stream has come, and the newest stream. The lock is held.
func (s *session) known() (found []place) {
	for id, st := range s.streams {
		found = append(found, place{id, st.received})
	}
	sort.Slice(found, func(one, other int) bool { return found[one].stream < found[other].stream })
	return found
}

// resume has a stream sent from where the peer has it. The lock is held.
func (s *session) resume(st *stream, from uint64) error {
	over := st.out.end
	if st.finished {
		over++
	}
	if from < st.out.start || from > over {
		return fmt.Errorf("stream %d: resumed at %d", st.id, from)
	}
	st.endSent = from > st.out.end
	st.next = least(from, st.out.end)
	st.ackDue = st.delivered > 0 // what the gateway has no stream of yet is not acknowledged
	return nil
}

// carried returns how many links have carried the session.
func (s *session) carried() uint64 { return atomic.LoadUint64(&s.resumes) }

// carry makes a link the session's own, runs it until it breaks, and returns why. The lock is held when it is called,
// as is write of the link while there is still a welcome to be sent before data.
func (s *session) carry(l *link) error {
	s.link = l
	var all []*stream
	for _, st := range s.streams {
		all = append(all, st)
	}
	s.due.Broadcast()
	s.mu.Unlock()
	atomic.AddUint64(&s.resumes, 1)
	go s.control(l)
	go s.watch(l)
	go func() {
		for _, st := range all {
			s.flush(st)
		}
	}()
	err := s.read(l)
	l.pipe.Close()
	close(l.done)
	s.mu.Lock()
	if s.link == l {
		s.link = nil
		s.resets = nil
	}
	s.due.Broadcast()
	s.mu.Unlock()
	return err
}

// read takes frames until the link breaks.
func (s *session) read(l *link) error {
	buffer := make([]byte, mostDataBytes)
	var have []byte // read and not taken yet
	var of *stream  // the stream that data belongs to, nil where it is gone
	var rest uint32 // of a frame's data
	for {
		for len(have) > 0 && (rest > 0 || len(have) >= headerBytes) {
			if rest > 0 {
				n := least(uint64(rest), uint64(len(have)))
				if of != nil {
					if err := s.deliver(of, have[:n]); err != nil {
						return err
					}
				}
				rest -= uint32(n)
				have = have[n:]
				continue
			}
			h, err := parse(have)
			if err != nil {
				return err
			}
			have = have[headerBytes:]
			if of, err = s.take(h); err != nil {
				return err
			}
			if h.kind == data {
				rest = h.length
			}
		}
		kept := copy(buffer, have)
		n, err := l.pipe.Read(buffer[kept:])
		have = buffer[:kept+n]
		if n > 0 {
			atomic.AddUint64(&l.heard, 1)
		}
		if err != nil {
			return err
		}
	}
}

// take obeys one frame; of data it returns the stream.
func (s *session) take(h header) (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.streams[h.stream]
	switch h.kind {
	case ping:
		return nil, nil
	case open:
		return nil, s.open(h)
	case reset:
		if st != nil {
			s.lost(st)
		}
		return nil, nil
	case data, end, ack:
	default:
		return nil, fmt.Errorf("a frame of kind %d in a session", h.kind)
	}
	if st == nil {
		if h.stream > s.last {
			return nil, fmt.Errorf("stream %d has not begun", h.stream)
		}
		return nil, nil
	}
	if err := s.acked(st, h.ack); err != nil || h.kind == ack {
		return nil, err
	}
	if h.offset != st.received || st.peerEnded {
		return nil, fmt.Errorf("stream %d: offset %d, not %d", st.id, h.offset, st.received)
	}
	if h.kind == end {
		st.peerEnded = true
		st.received++
		st.more.Signal()
	}
	return st, nil
}

func (s *session) acked(st *stream, upTo uint64) error {
	most := st.next
	if st.endSent {
		most++
	}
	if upTo > most {
		return fmt.Errorf("stream %d: %d acknowledged of %d", st.id, upTo, most)
	}
	if upTo > st.out.end {
		st.endAcked = true
	}
	if upTo = least(upTo, st.out.end); upTo > st.out.start {
		st.out.start = upTo
		st.room.Signal()
	}
	s.forgetIfOver(st)
	return nil
}

// open begins a stream that the guest asks for.
func (s *session) open(h header) error {
	if s.guest || h.stream <= s.last {
		return fmt.Errorf("stream %d begins again", h.stream)
	}
	s.last = h.stream
	if len(s.streams) == mostStreams {
		s.resets = append(s.resets, h.stream)
		s.due.Broadcast()
		return nil
	}
	go s.accept(s.newStream(h.stream, h.port))
	return nil
}

// cut breaks the link and returns when no byte of it is obeyed any more; nor of one on its way that does not count still.
func (s *session) cut() {
	s.attaching.Lock()
	defer s.attaching.Unlock()
	s.cutLink()
}

func (s *session) cutLink() {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
		l.pipe.Close()
		<-l.done
	}
}

// end drops all streams and takes no more.
func (s *session) end() {
	s.mu.Lock()
	s.ended = true
	l := s.link
	s.mu.Unlock()
	s.dropAll()
	if l != nil {
		l.pipe.Close()
	}
}

// greet is the guest's side of the first exchange on a link, which it then runs; it returns why the link broke.
func (s *session) greet(p pipe, gateway *[idBytes]byte) error {
	s.mu.Lock()
	mine := putPlaces(s.id, s.known())
	s.mu.Unlock()
	if _, err := p.Write(frame(header{kind: hello}, mine)); err != nil {
		return err
	}
	h, payload, err := readFrame(p, welcome)
	if err != nil {
		return err
	}
	id, theirs, err := places(payload)
	if err != nil {
		return err
	}
	_ = p.SetDeadline(time.Time{})
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return errors.New("the lease has ended")
	}
	if h.offset > uint64(s.opened) {
		s.mu.Unlock()
		return fmt.Errorf("stream %d has not begun", h.offset)
	}
	at := map[uint32]uint64{}
	for _, each := range theirs {
		at[each.stream] = each.received
	}
	for _, st := range s.streams {
		from, is := at[st.id]
		switch {
		case id != *gateway && st.id <= s.opened:
			s.drop(st, false)
		case is:
			err = s.resume(st, from)
		case uint64(st.id) <= h.offset:
			s.lost(st)
		default:
			err = s.resume(st, 0)
		}
		if err != nil {
			s.mu.Unlock()
			return err
		}
	}
	*gateway, s.opened = id, uint32(h.offset)
	return s.carry(newLink(p))
}

// welcome is the gateway's side: an older link is cut before the first byte of the new one counts.
//
// still says whether the pipe is the one that counts; after cut it may say no.
func (s *session) welcome(p pipe, gateway [idBytes]byte, payload []byte, still func() bool) error {
	id, theirs, err := places(payload)
	if err != nil {
		return err
	}
	s.attaching.Lock()
	if !still() {
		s.attaching.Unlock()
		return errors.New("superseded")
	}
	s.cutLink()
	l := newLink(p)
	l.write.Lock()
	s.mu.Lock()
	s.attaching.Unlock()
	at := map[uint32]uint64{}
	for _, each := range theirs {
		at[each.stream] = each.received
	}
	for _, st := range s.streams {
		from, is := at[st.id]
		if id != s.id || !is {
			s.drop(st, false)
		} else if err = s.resume(st, from); err != nil {
			s.mu.Unlock()
			return err
		}
	}
	if id != s.id {
		s.id, s.last = id, 0
	}
	mine := frame(header{kind: welcome, offset: uint64(s.last)}, putPlaces(gateway, s.known()))
	go func() {
		defer l.write.Unlock()
		if _, err := p.Write(mine); err != nil {
			p.Close()
		}
	}()
	return s.carry(l)
}
