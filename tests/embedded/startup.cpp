// Start-up of a bare Cortex-M or RISC-V and output through semihosting, without a C library. A board's own start-up and UART
// take this file's place; what stays is that somebody defines memcpy, memset, memcmp and strlen.
#include <stddef.h>
#include <stdint.h>

extern "C" {
extern uint32_t stack_bottom[], stack_top[], data_begin[], data_end[], data_in_flash[], bss_begin[], bss_end[];   // chip.ld
[[noreturn]] void reset();

// Also called by code that the compiler makes. Words where both ends are aligned.
void* memcpy(void* to, const void* from, size_t n)
{
    unsigned char* a = static_cast<unsigned char*>(to);
    const unsigned char* b = static_cast<const unsigned char*>(from);
    if ((reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % 4 == 0)
        for (; n >= 4; n -= 4, a += 4, b += 4) *reinterpret_cast<uint32_t*>(a) = *reinterpret_cast<const uint32_t*>(b);
    while (n--) *a++ = *b++;
    return to;
}
void* memset(void* to, int value, size_t n)
{
    unsigned char* a = static_cast<unsigned char*>(to);
    const uint32_t byte = value & 255;
    if (reinterpret_cast<uintptr_t>(a) % 4 == 0)
        for (; n >= 4; n -= 4, a += 4) *reinterpret_cast<uint32_t*>(a) = byte * 0x01010101u;
    while (n--) *a++ = static_cast<unsigned char>(byte);
    return to;
}
int memcmp(const void* x, const void* y, size_t n)
{
    const unsigned char* a = static_cast<const unsigned char*>(x);
    const unsigned char* b = static_cast<const unsigned char*>(y);
    for (; n--; a++, b++)
        if (*a != *b) return *a - *b;
    return 0;
}
size_t strlen(const char* text)
{
    size_t n = 0;
    while (text[n]) n++;
    return n;
}
}

int main();

static int semihosting(uint32_t operation, const void* argument)
{
#if defined(__riscv)
    register uint32_t result __asm__("a0") = operation;
    register const void* parameter __asm__("a1") = argument;
    __asm__ volatile(".option push\n .option norvc\n .balign 16\n slli zero, zero, 0x1f\n ebreak\n srai zero, zero, 7\n .option pop"
                     : "+r"(result) : "r"(parameter) : "memory");
#else
    register uint32_t result __asm__("r0") = operation;
    register const void* parameter __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(result) : "r"(parameter) : "memory");
#endif
    return static_cast<int>(result);
}

void put(const char* text, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) semihosting(3, text + i); // SYS_WRITEC
}

[[noreturn]] static void leave(uint32_t code)
{
    const uint32_t block[2] = {0x20026, code};                 // ADP_Stopped_ApplicationExit
    for (;;) semihosting(0x20, block);                         // SYS_EXIT_EXTENDED
}

uint32_t stack_used()                                          // the deepest so far: reset() painted the stack
{
    const uint32_t* p = stack_bottom;
    while (p < stack_top && *p == 0xdeadbeefu) p++;
    return static_cast<uint32_t>(stack_top - p) * 4;
}

extern "C" void reset()
{
#if defined(__ARM_FP)
    *reinterpret_cast<volatile uint32_t*>(0xe000ed88u) |= 0xfu << 20;        // CPACR: switch the FPU on
    __asm__ volatile("dsb\n isb");
#endif
#if defined(__arm__) && !defined(__ARM_FEATURE_UNALIGNED)
    *reinterpret_cast<volatile uint32_t*>(0xe000ed14u) |= 1u << 3;           // CCR.UNALIGN_TRP: as strict as an M0
#endif
    uint32_t* const here = static_cast<uint32_t*>(__builtin_frame_address(0));
    for (uint32_t* p = stack_bottom; p < here - 32; p++) *p = 0xdeadbeefu;   // paint the stack, but not what is in use
    memcpy(data_begin, data_in_flash, static_cast<size_t>(data_end - data_begin) * 4);
    memset(bss_begin, 0, static_cast<size_t>(bss_end - bss_begin) * 4);
    leave(static_cast<uint32_t>(main()));
}

extern "C" [[noreturn]] void report_fault()
{
    put("fault\n", 6);
    leave(99);
}

#if defined(__riscv)
// The first instruction: a stack, the handler of faults, the FPU if there is one.
__asm__(".section .vectors, \"ax\"\n .option arch, +zicsr\n"
        "    la sp, stack_top\n la t0, fault\n csrw mtvec, t0\n li t0, 0x2000\n csrs mstatus, t0\n j reset\n"
        "    .balign 4\n fault: la sp, stack_top\n j report_fault\n .text");
#else
extern "C" __attribute__((naked)) void fault()                 // the stack may be what is broken: begin a new one
{
    __asm__ volatile("ldr r0, =stack_top\n mov sp, r0\n bl report_fault");
}

// The first word is the stack pointer, the others are the handlers of the 15 system exceptions.
__attribute__((section(".vectors"), used)) static void (*const vectors[16])() = {
    reinterpret_cast<void (*)()>(stack_top), reset, fault, fault, fault, fault, fault, fault,
    fault, fault, fault, fault, fault, fault, fault, fault};
#endif
