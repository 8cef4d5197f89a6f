// Operands of the asm statements of wgmma: its accumulators, up to 128 a
// thread, have to be named one by one. By macros, as constraints and numbers
// must be literals.
#pragma once

// clang-format off
// The numbers of so many accumulators, operands 0 and on.
#define NIBBLE_WGMMA_NUMBERS_16 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NIBBLE_WGMMA_NUMBERS_32 \
  NIBBLE_WGMMA_NUMBERS_16 "," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NIBBLE_WGMMA_NUMBERS_48 \
  NIBBLE_WGMMA_NUMBERS_32 "," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NIBBLE_WGMMA_NUMBERS_64 \
  NIBBLE_WGMMA_NUMBERS_48 "," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NIBBLE_WGMMA_NUMBERS_80 \
  NIBBLE_WGMMA_NUMBERS_64 "," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NIBBLE_WGMMA_NUMBERS_96 \
  NIBBLE_WGMMA_NUMBERS_80 "," \
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NIBBLE_WGMMA_NUMBERS_112 \
  NIBBLE_WGMMA_NUMBERS_96 "," \
  "%96,%97,%98,%99,%100,%101,%102,%103," \
  "%104,%105,%106,%107,%108,%109,%110,%111"
#define NIBBLE_WGMMA_NUMBERS_128 \
  NIBBLE_WGMMA_NUMBERS_112 "," \
  "%112,%113,%114,%115,%116,%117,%118,%119," \
  "%120,%121,%122,%123,%124,%125,%126,%127"
// The accumulators d[i] .. d[i + 3], or as many more, `d` [][4]. `io`: their
// constraint, "+r" or "+f".
#define NIBBLE_WGMMA_TILE(io, d, i) \
  io((d)[i][0]), io((d)[i][1]), io((d)[i][2]), io((d)[i][3])
#define NIBBLE_WGMMA_TILES_4(io, d, i)                                 \
  NIBBLE_WGMMA_TILE(io, d, i), NIBBLE_WGMMA_TILE(io, d, (i) + 1),      \
  NIBBLE_WGMMA_TILE(io, d, (i) + 2), NIBBLE_WGMMA_TILE(io, d, (i) + 3)
#define NIBBLE_WGMMA_TILES_8(io, d, i) \
  NIBBLE_WGMMA_TILES_4(io, d, i), NIBBLE_WGMMA_TILES_4(io, d, (i) + 4)
#define NIBBLE_WGMMA_TILES_16(io, d, i) \
  NIBBLE_WGMMA_TILES_8(io, d, i), NIBBLE_WGMMA_TILES_8(io, d, (i) + 8)
// clang-format on
