// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sort"
)

// A handover is what another gateway needs to go on with a session: all but the connections to the server, which the
// holder has. It goes to another host, by who started the gateway.
type handover struct {
	Gateway []byte       `json:"gateway"` // identity
	Guest   []byte       `json:"guest"`   // identity
	Last    uint32       `json:"last"`    // newest stream
	Streams []handedOver `json:"streams"`
}

// handedOver is one stream.
type handedOver struct {
	ID        uint32 `json:"id"`
	Port      uint16 `json:"port"`
	OutStart  uint64 `json:"out_start"` // offset of the first byte that the guest has not acknowledged
	Out       []byte `json:"out"`
	Finished  bool   `json:"finished"`
	EndAcked  bool   `json:"end_acked"`
	Received  uint64 `json:"received"`
	Delivered uint64 `json:"delivered"`
	In        []byte `json:"in"` // what the server has not taken
	PeerEnded bool   `json:"peer_ended"`
}

// No stream gets as far.
const mostOffset = 1 << 62

// whole returns all that a ring keeps.
func (r *ring) whole() (found []byte) {
	for at := r.start; at < r.end; {
		piece := r.from(at)
		found = append(found, piece...)
		at += uint64(len(piece))
	}
	return found
}

// fill has a ring keep bytes from an offset on.
func (r *ring) fill(start uint64, bytes []byte) {
	r.kept = make([]byte, windowBytes)
	r.base, r.start, r.end = start, start, start+uint64(len(bytes))
	copy(r.kept, bytes)
}

// freeze ends the carrying of bytes, and returns what is needed to go on, and the connections to the server in the order
// of the streams. The session has no stream afterwards. No link carries it, nor may any begin to.
func (s *session) freeze() (made []handedOver, inner []*net.TCPConn) {
	s.mu.Lock()
	s.frozen = true
	var all []*stream
	for _, st := range s.streams {
		if st.inner == nil {
			s.drop(st, false) // the server has not taken it yet: the guest sees a reset
			continue
		}
		_ = st.inner.SetDeadline(longAgo) // who reads or writes returns
		st.room.Broadcast()
		st.more.Broadcast()
		all = append(all, st)
	}
	s.mu.Unlock()
	sort.Slice(all, func(one, other int) bool { return all[one].id < all[other].id })
	for _, st := range all {
		st.busy.Wait()
		s.mu.Lock()
		if !st.gone {
			made = append(made, handedOver{
				ID: st.id, Port: st.port, OutStart: st.out.start, Out: st.out.whole(), Finished: st.finished,
				EndAcked: st.endAcked, Received: st.received, Delivered: st.delivered, In: st.in.whole(),
				PeerEnded: st.peerEnded,
			})
			inner = append(inner, st.inner)
			st.gone = true
			delete(s.streams, st.id)
		}
		s.mu.Unlock()
	}
	return made, inner
}

// thaw goes on with streams that were handed over.
func (s *session) thaw(given []handedOver, inner []*net.TCPConn) error {
	s.mu.Lock()
	s.frozen = false
	var all []*stream
	for at, each := range given {
		st := s.newStream(each.ID, each.Port)
		st.out.fill(each.OutStart, each.Out)
		st.next, st.finished, st.endAcked = each.OutStart, each.Finished, each.EndAcked
		st.received, st.delivered, st.peerEnded = each.Received, each.Delivered, each.PeerEnded
		bytes := each.Delivered
		if each.PeerEnded && each.Delivered == each.Received {
			bytes-- // its end is one
		}
		st.in.fill(bytes, each.In)
		raw, err := inner[at].SyscallConn()
		if err != nil {
			s.mu.Unlock()
			return err
		}
		st.inner, st.raw = inner[at], raw
		all = append(all, st)
	}
	s.mu.Unlock()
	for _, st := range all {
		s.work(st)
	}
	return nil
}

// check says why what was handed over cannot be; it comes from another host, but a tenant's bytes are in it.
func (given *handover) check(connections int) error {
	if len(given.Gateway) != idBytes || len(given.Guest) != idBytes || len(given.Streams) > mostStreams {
		return errors.New("a handover of another form")
	}
	if len(given.Streams) != connections {
		return fmt.Errorf("%d streams were handed over with %d connections", len(given.Streams), connections)
	}
	last := uint32(0)
	for _, each := range given.Streams {
		end := uint64(0)
		if each.PeerEnded {
			end = 1
		}
		whole := each.Delivered + uint64(len(each.In))
		switch {
		case each.Received < end || each.Received > mostOffset || each.Delivered > each.Received || each.OutStart > mostOffset:
			return fmt.Errorf("stream %d: offsets that cannot be", each.ID)
		case each.ID <= last || each.ID > given.Last:
			return fmt.Errorf("stream %d is handed over after %d", each.ID, last)
		case len(each.Out) > windowBytes || len(each.In) > windowBytes:
			return fmt.Errorf("stream %d: more than the window", each.ID)
		case whole+end != each.Received && !(end == 1 && len(each.In) == 0 && whole == each.Received):
			return fmt.Errorf("stream %d: %d bytes of %d are missing", each.ID, each.Received-whole, each.Received)
		}
		last = each.ID
	}
	return nil
}

// freeze hands the connections to the holder; it takes no doorman until it is thawed.
func (g *gateway) freeze() (*handover, error) {
	g.mu.Lock()
	if g.holder == "" {
		g.mu.Unlock()
		return nil, errors.New("there is no holder")
	}
	if g.frozen {
		g.mu.Unlock()
		return nil, errors.New("it is frozen already")
	}
	g.frozen, g.carries, g.terms = true, nil, terms{}
	g.mu.Unlock()
	g.session.cut()
	made := &handover{Gateway: append([]byte(nil), g.identity[:]...)}
	var inner []*net.TCPConn
	made.Streams, inner = g.session.freeze()
	g.session.mu.Lock()
	made.Guest, made.Last = append([]byte(nil), g.session.id[:]...), g.session.last
	g.session.mu.Unlock()
	var handed []int
	for _, each := range inner {
		defer each.Close() // the holder keeps the connection
		file, err := each.File()
		if err != nil {
			return nil, err
		}
		defer file.Close()
		handed = append(handed, int(file.Fd()))
	}
	_, err := tell(g.holder, sayKeep, handed...)
	return made, err
}

// thaw goes on with what this gateway, or one on another host, has handed over.
func (g *gateway) thaw(given *handover) error {
	handed, err := tell(g.holder, sayGive)
	if err != nil {
		return err
	}
	if err := given.check(len(handed)); err != nil {
		return err
	}
	var inner []*net.TCPConn
	for _, each := range handed {
		file := os.NewFile(uintptr(each), "connection")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			return err
		}
		tcp, is := conn.(*net.TCPConn)
		if !is {
			return errors.New("what was handed over is no connection of TCP")
		}
		inner = append(inner, tcp)
	}
	g.mu.Lock()
	copy(g.identity[:], given.Gateway)
	g.mu.Unlock()
	g.session.mu.Lock()
	copy(g.session.id[:], given.Guest)
	g.session.last = given.Last
	g.session.mu.Unlock()
	if err := g.session.thaw(given.Streams, inner); err != nil {
		return err
	}
	g.mu.Lock()
	g.frozen = false
	g.mu.Unlock()
	return nil
}
