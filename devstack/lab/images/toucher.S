/* SPDX-License-Identifier: Apache-2.0
 *
 * A guest without an operating system that makes its memory resident: a multiboot kernel of less than 1 KiB.
 *
 * The first vCPU writes one word into each 4 KiB page from 4 MiB to the end of memory, writes "TOUCHED" to the first
 * serial port, and halts. The others are never started: on an emulated host vCPUs that touch new pages at the same time
 * wait for locks of a kernel whose CPUs rarely all run, minutes for 128 MiB. A Linux guest would need minutes to boot.
 */
        .set    MULTIBOOT_MAGIC, 0x1badb002
        .set    MULTIBOOT_FLAGS, 0x2            /* with memory information */
        .set    FIRST_BYTE, 4 << 20
        .set    PAGE, 4096

        .text
        .code32
        .align  4                               /* the header stands in the first 8 KiB of the file */
        .long   MULTIBOOT_MAGIC, MULTIBOOT_FLAGS, -(MULTIBOOT_MAGIC + MULTIBOOT_FLAGS)
        .globl  _start
_start:
        cli
        cld
        movl    8(%ebx), %eax                   /* multiboot information: KiB above 1 MiB */
        shll    $10, %eax
        addl    $1 << 20, %eax
        movl    $FIRST_BYTE, %edi
1:      incl    (%edi)
        addl    $PAGE, %edi
        cmpl    %eax, %edi
        jb      1b
        movl    $message, %esi
        movw    $0x3f8, %dx
        movl    $(message_end - message), %ecx
        rep outsb
2:      hlt
        jmp     2b

message:
        .ascii  "TOUCHED\r\n"
message_end:
