#include "model/bpe.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/byte_alphabet.h"

namespace nibble::model {
namespace {

constexpr uint32_t kEnd = UINT32_MAX;  // no neighbour
constexpr int32_t kNoToken = -1;       // a byte the vocabulary lacks

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
         static_cast<uint32_t>(right);
}

// A run of bytes of the piece that is one token so far.
struct Symbol {
  int32_t id;
  uint32_t previous;
  uint32_t next;
  uint32_t begin;
  bool merged_away;
};

// A merge that was possible when it was queued.
struct Candidate {
  uint64_t order;  // rank << 32 | index of the left symbol: least first
  int32_t left_id;
  int32_t right_id;
  bool operator>(const Candidate& other) const { return order > other.order; }
};

}  // namespace

// The working memory of one Encode, kept from piece to piece.
struct Bpe::Scratch {
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

absl::StatusOr<Bpe> Bpe::Create(const Vocabulary& vocabulary) {
  NIBBLE_ASSIGN_OR_RETURN(PreTokenizer pre,
                          PreTokenizer::Create(vocabulary.data().pre));
  Bpe result(std::move(pre));
  result.AddBytes(vocabulary);
  NIBBLE_RETURN_IF_ERROR(result.AddMerges(vocabulary));
  return result;
}

void Bpe::AddBytes(const Vocabulary& vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = vocabulary.ByteToken(static_cast<uint8_t>(byte));
  }
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.IsPlain(id)) continue;
    const std::string_view bytes = vocabulary.bytes(id);
    // Tokens that the alphabet cannot spell come from no merge.
    if (bytes.empty() || BytesOfSpelling(vocabulary.spelling(id)) != bytes) {
      continue;
    }
    if (bytes.size() == 1) byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
    if (pre_.ignore_merges()) whole_.try_emplace(bytes, id);
  }
}

absl::Status Bpe::AddMerges(const Vocabulary& vocabulary) {
  const std::vector<std::string>& merges = vocabulary.data().merges;
  merges_.reserve(merges.size());
  const auto find_plain = [&](std::string_view spelling) {
    const int32_t id = vocabulary.Find(spelling);
    return id >= 0 && vocabulary.IsPlain(id) ? id : kNoToken;
  };
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "vocabulary: merge ", rank,
          " is not two parts with a space between: \"", merges[rank], "\""));
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    const int32_t left_id = find_plain(left);
    const int32_t right_id = find_plain(right);
    const int32_t id = find_plain(std::string(left) + std::string(right));
    if (left_id < 0 || right_id < 0 || id < 0) continue;
    merges_.try_emplace(PairKey(left_id, right_id),
                        Merge{static_cast<int32_t>(rank), id});
  }
  return absl::OkStatus();
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return nullptr;
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::PushPair(uint32_t left, Scratch& scratch) const {
  const Symbol& first = scratch.symbols[left];
  if (first.next == kEnd) return;
  const Symbol& second = scratch.symbols[first.next];
  const Merge* merge = FindMerge(first.id, second.id);
  if (merge == nullptr) return;
  scratch.heap.push_back(
      {static_cast<uint64_t>(merge->rank) << 32 | left, first.id, second.id});
}

void Bpe::MergePiece(std::string_view piece, Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Candidate>& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const auto size = static_cast<uint32_t>(piece.size());
  for (uint32_t i = 0; i < size; ++i) {
    symbols.push_back({byte_ids_[static_cast<uint8_t>(piece[i])],
                       i == 0 ? kEnd : i - 1, i + 1 == size ? kEnd : i + 1, i,
                       false});
  }
  for (uint32_t i = 0; i < size; ++i) PushPair(i, scratch);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate best = heap.back();
    heap.pop_back();
    const auto at = static_cast<uint32_t>(best.order);
    Symbol& left = symbols[at];
    // Outdated when either side has been merged since.
    if (left.merged_away || left.id != best.left_id || left.next == kEnd ||
        symbols[left.next].id != best.right_id) {
      continue;
    }
    Symbol& right = symbols[left.next];
    left.id = FindMerge(best.left_id, best.right_id)->id;
    left.next = right.next;
    right.merged_away = true;
    if (left.next != kEnd) symbols[left.next].previous = at;
    for (const uint32_t first : {left.previous, at}) {
      if (first == kEnd) continue;
      const size_t queued = heap.size();
      PushPair(first, scratch);
      if (heap.size() > queued) {
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
      }
    }
  }
}

void Bpe::EncodePiece(std::string_view piece, size_t offset, Scratch& scratch,
                      std::vector<TokenSpan>& out) const {
  if (pre_.ignore_merges()) {
    const auto whole = whole_.find(piece);
    if (whole != whole_.end()) {
      out.push_back({whole->second, offset, offset + piece.size()});
      return;
    }
  }
  MergePiece(piece, scratch);
  const std::vector<Symbol>& symbols = scratch.symbols;
  for (uint32_t i = 0; i != kEnd; i = symbols[i].next) {
    if (symbols[i].id == kNoToken) continue;
    const size_t end =
        symbols[i].next == kEnd ? piece.size() : symbols[symbols[i].next].begin;
    out.push_back({symbols[i].id, offset + symbols[i].begin, offset + end});
  }
}

absl::Status Bpe::Encode(std::string_view text, size_t offset,
                         std::vector<TokenSpan>& out) const {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<TextRange> pieces,
                          pre_.Split(text));
  const size_t first = out.size();
  Scratch scratch;
  for (const TextRange& piece : pieces) {
    EncodePiece(text.substr(piece.begin, piece.end - piece.begin),
                offset + piece.begin, scratch, out);
  }
  // Bytes without a token go to the token before them, or to the first one.
  for (size_t i = first + 1; i < out.size(); ++i) {
    out[i - 1].end = out[i].begin;
  }
  if (out.size() > first) out[first].begin = offset;
  if (!out.empty()) out.back().end = offset + text.size();
  return absl::OkStatus();
}

}  // namespace nibble::model
