package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

// Values of signatures, of kern/cs_blobs.h. They are big-endian.
const (
	magicSignature = 0xfade0cc0
	magicDirectory = 0xfade0c02
	slotDirectory  = 0
	flagAdHoc      = 0x2
	hashSHA256     = 2
)

// directory is the beginning of a code directory, which lists the hash of each page of a program.
type directory struct {
	Magic, Length, Version, Flags, Hashes, Identifier, Specials, Slots, Limit uint32
	HashSize, HashType, Platform, PageBits                                    uint8
}

// signature is the signature of a program.
type signature struct {
	pages int
	adHoc bool
	wrong error // why it does not fit the program
}

// readSignature reads the signature at an offset of a file, which it ends, and compares its hashes with the file.
func readSignature(path string, at, size int64) (*signature, error) {
	whole, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if at < 0 || size < 0 || at+size > int64(len(whole)) {
		return nil, fmt.Errorf("found a signature of %d bytes at %d in %d bytes", size, at, len(whole))
	}
	d, blob, err := findDirectory(whole[at : at+size])
	if err != nil {
		return nil, err
	}
	s := &signature{pages: int(d.Slots), adHoc: d.Flags&flagAdHoc != 0}
	if at+size != int64(len(whole)) {
		s.wrong = fmt.Errorf("found %d bytes behind the signature, expected none", int64(len(whole))-at-size)
	} else {
		s.wrong = d.compare(blob, whole[:at])
	}
	return s, nil
}

// findDirectory returns the code directory of a signature, and its bytes.
func findDirectory(all []byte) (d directory, blob []byte, err error) {
	var head struct{ Magic, Length, Count uint32 }
	r := bytes.NewReader(all)
	if err := binary.Read(r, binary.BigEndian, &head); err != nil || head.Magic != magicSignature {
		return d, nil, fmt.Errorf("found a signature that begins with %#x, expected %#x", head.Magic, magicSignature)
	}
	for range head.Count {
		var entry struct{ Slot, Offset uint32 }
		if err := binary.Read(r, binary.BigEndian, &entry); err != nil {
			return d, nil, err
		}
		if entry.Slot != slotDirectory || int(entry.Offset) > len(all) {
			continue
		}
		blob = all[entry.Offset:]
		if err := binary.Read(bytes.NewReader(blob), binary.BigEndian, &d); err != nil || d.Magic != magicDirectory {
			return d, nil, fmt.Errorf("found a code directory that begins with %#x, expected %#x", d.Magic, magicDirectory)
		}
		return d, blob, nil
	}
	return d, nil, errors.New("found a signature without a code directory")
}

// compare checks the hash of each page of the signed bytes.
func (d directory) compare(blob, signed []byte) error {
	page := 1 << d.PageBits
	switch {
	case d.HashType != hashSHA256 || d.HashSize != sha256.Size:
		return fmt.Errorf("found hashes of the type %d with %d bytes, expected SHA-256", d.HashType, d.HashSize)
	case int64(d.Limit) != int64(len(signed)) || int(d.Slots) != (len(signed)+page-1)/page:
		return fmt.Errorf("found %d pages for %d bytes, expected those of the %d bytes before the signature", d.Slots, d.Limit, len(signed))
	case int64(d.Hashes)+int64(d.Slots)*sha256.Size > int64(len(blob)):
		return errors.New("found a code directory that ends before its hashes")
	}
	for i := range int(d.Slots) {
		sum := sha256.Sum256(signed[i*page : min((i+1)*page, len(signed))])
		if !bytes.Equal(sum[:], blob[int(d.Hashes)+i*sha256.Size:][:sha256.Size]) {
			return fmt.Errorf("the hash of page %d of %d is not that of the signature", i, d.Slots)
		}
	}
	return nil
}

// check refuses a signature that does not fit.
func (s *signature) check() error {
	if s.wrong == nil && !s.adHoc {
		return errors.New("found a signature with an identity, expected one ad hoc")
	}
	return s.wrong
}
