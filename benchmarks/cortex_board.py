"""What a program needs on QEMU's board mps2-an500: where its sections lie, and what runs before main()."""

BOARD = """
MEMORY { rom : ORIGIN = 0, LENGTH = 4M  ram : ORIGIN = 0x20000000, LENGTH = 4M }
SECTIONS {
    .text : { KEEP(*(.vectors)) *(.text* .rodata*) } > rom
    .ARM.exidx : { *(.ARM.exidx*) } > rom
    .data : { *(.data*) } > ram
    .bss : { *(.bss* COMMON) end = .; } > ram
}
"""
START = """
#include <stdint.h>
#include <stdlib.h>

int main(void);
void initialise_monitor_handles(void), _init(void), _fini(void), start(void);
void _init(void) {}
void _fini(void) {}
void start(void) {
    *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20; /* the floating-point unit on */
    initialise_monitor_handles();
    exit(main());
}
__attribute__((section(".vectors"), used)) static void (*const vectors[2])(void) = {
    (void (*)(void))0x20400000, start};
"""
