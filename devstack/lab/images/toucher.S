/* SPDX-License-Identifier: Apache-2.0
 *
 * A guest without an operating system that makes its memory resident: a multiboot kernel of about 1 KiB.
 *
 * Every vCPU writes one word into each 4 KiB page from 4 MiB to the end of memory. Then it halts, or, when the kernel
 * command line begins with "forever" (nova's own begins with "root="), starts over. The number of finished passes of
 * vCPU i stands at guest-physical address 0x9000 + 4 * i, the number of running vCPUs at 0x8ff0; after its first pass
 * vCPU 0 writes "TOUCHED" to the first serial port. A Linux guest would need minutes to boot under nested emulation.
 */
        .set    MULTIBOOT_MAGIC, 0x1badb002
        .set    MULTIBOOT_FLAGS, 0x3            /* page-aligned, with memory information */
        .set    FIRST_BYTE, 4 << 20
        .set    PAGE, 4096
        .set    COUNTERS, 0x9000
        .set    RUNNING, 0x8ff0
        .set    TRAMPOLINE, 0x8000
        .set    LOCAL_APIC, 0xfee00000

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
        movl    %eax, memory_end
        movl    16(%ebx), %eax                  /* command line: "NAME [ARGUMENT]" */
        movb    $0, forever
        testl   $4, (%ebx)
        jz      1f
0:      movb    (%eax), %cl
        incl    %eax
        cmpb    $0, %cl
        je      1f
        cmpb    $' ', %cl
        jne     0b
        cmpb    $'f', (%eax)
        sete    forever
1:      movl    $0, RUNNING
        movl    $COUNTERS, %edi
        movl    $64, %ecx
        xorl    %eax, %eax
        rep stosl
        movl    $trampoline, %esi               /* the other vCPUs start in real mode below 1 MiB */
        movl    $TRAMPOLINE, %edi
        movl    $(trampoline_end - trampoline), %ecx
        rep movsb
        movl    $LOCAL_APIC, %ebx
        orl     $0x1ff, 0xf0(%ebx)              /* enable the local APIC */
        movl    $0x000c4500, 0x300(%ebx)        /* INIT to all but self */
        movl    $2000000, %ecx
1:      loop    1b
        movl    $(0x000c4600 | TRAMPOLINE >> 12), 0x300(%ebx)   /* SIPI to all but self */
        jmp     touch

        .globl  protected_mode
protected_mode:
        movw    $0x10, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
touch:
        movl    $1, %ebp
        lock xaddl %ebp, RUNNING                /* %ebp: my number */
pass:
        movl    $FIRST_BYTE, %edi
1:      incl    (%edi)
        addl    $PAGE, %edi
        cmpl    memory_end, %edi
        jb      1b
        incl    COUNTERS(, %ebp, 4)
        testl   %ebp, %ebp
        jnz     2f
        cmpl    $1, COUNTERS
        jne     2f
        movl    $message, %esi
        movw    $0x3f8, %dx
        movl    $(message_end - message), %ecx
        rep outsb
2:      cmpb    $0, forever
        jne     pass
3:      hlt
        jmp     3b

message:
        .ascii  "TOUCHED\r\n"
message_end:

        .align  16
gdt:    .quad   0, 0x00cf9a000000ffff, 0x00cf92000000ffff
gdt_pointer:
        .word   23
        .long   gdt

        .code16
trampoline:
        cli
        xorw    %ax, %ax
        movw    %ax, %ds
        lgdtl   TRAMPOLINE + (trampoline_gdt - trampoline)
        movl    %cr0, %eax
        orl     $1, %eax
        movl    %eax, %cr0
        ljmpl   $0x08, $protected_mode
        .align  4
trampoline_gdt:
        .word   23
        .long   gdt
trampoline_end:

        .bss
        .align  4
memory_end:
        .long   0
forever:
        .byte   0
