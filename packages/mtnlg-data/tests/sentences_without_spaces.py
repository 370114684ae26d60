"""Chinese, Japanese and Thai sentences made from small vocabularies, for tests of scripts without spaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

#: Parts of a sentence, one a paragraph, in their order; each word is drawn from its part.
CHINESE = """\
昨天早上 今年春天 周末 每个月 去年冬天 下雨的时候 天黑以前 三年前 吃过晚饭 听到消息后 回家路上 第二天

老师 邻居 渔夫 医生 我的姐姐 那位画家 年轻的司机 图书管理员 卖菜的老人 两个学生 船长 木匠 记者 厨师

在港口 在旧桥旁边 在山脚下 在火车站 在市场 在学校门口 在院子里 在河边 在医院 在二楼 在村子东头 在窗前

修理 寻找 借走 描写 收拾 称赞 打听 观察 带来 整理 忘记 谈起 卖掉 画出 检查 埋下

一只木船 许多旧书 新鲜的鱼 古老的地图 孩子的风筝 红色的雨伞 几封信 祖父的钟 干净的被子 白色的石头 明年的计划
丢失的钥匙 窗台上的花 一盏油灯
"""
JAPANESE = """\
昨日の朝 春になると 週末に 先月から 雨の日には 夕方まで 三年前に 食事のあとで 知らせを聞いて 帰り道で 翌日
冬の夜

先生が 隣の人が 漁師が 医者は 姉は 画家も 若い運転手が 司書が 八百屋のおばあさんが 二人の学生が 船長は 大工が
記者は

港で 古い橋のそばで 山のふもとで 駅前で 市場で 校門の前で 庭で 川べりで 病院で 二階で 村のはずれで 窓ぎわで

木の舟を たくさんの本を 新しい魚を 昔の地図を 子どもの凧を 赤い傘を 手紙を 祖父の時計を 布団を 白い石を
来年の計画を なくした鍵を 花を ランプを

直していた 探しました 借りていった 描いている 片づけた ほめていました たずねた 眺めていた 持ってきた
忘れてしまった 売りました 調べている 埋めたらしい
"""
THAI = """\
เมื่อวานตอนเช้า ฤดูใบไม้ผลิปีนี้ ทุกสุดสัปดาห์ เดือนที่แล้ว ตอนฝนตก ก่อนฟ้ามืด สามปีก่อน หลังอาหารเย็น
ระหว่างทางกลับบ้าน วันรุ่งขึ้น

คุณครู เพื่อนบ้าน ชาวประมง คุณหมอ พี่สาวของฉัน จิตรกรคนนั้น คนขับรถหนุ่ม บรรณารักษ์ ยายขายผัก นักเรียนสองคน
กัปตันเรือ ช่างไม้ นักข่าว

ซ่อม ตามหา ยืม เล่าเรื่อง เก็บ ชื่นชม ถามถึง เฝ้าดู นำ จัด ลืม พูดถึง ขาย วาด ตรวจ ฝัง

เรือไม้ลำหนึ่ง หนังสือเก่าหลายเล่ม ปลาสด แผนที่โบราณ ว่าวของเด็ก ร่มสีแดง จดหมายสามฉบับ นาฬิกาของคุณปู่
ผ้าห่มสะอาด ก้อนหินสีขาว แผนการปีหน้า กุญแจที่หายไป ตะเกียงน้ำมัน

ที่ท่าเรือ ข้างสะพานเก่า ที่เชิงเขา ที่สถานีรถไฟ ในตลาด หน้าโรงเรียน ในสวน ริมแม่น้ำ ที่โรงพยาบาล บนชั้นสอง
ท้ายหมู่บ้าน ริมหน้าต่าง
"""
LANGUAGES = {
    code: [part.split() for part in parts.split("\n\n")]
    for code, parts in {"zh": CHINESE, "ja": JAPANESE, "th": THAI}.items()
}
ENDS = {"zh": "。", "ja": "。", "th": " "}


def sentence(language: str, random: Random) -> str:
    """One sentence with its end."""
    return "".join(random.choice(part) for part in LANGUAGES[language]) + ENDS[language]


def text(language: str, random: Random, characters: int = 800) -> str:
    """Sentences of at least so many characters in all."""
    written = ""
    while len(written) < characters:
        written += sentence(language, random)
    return written


def change(original: str, random: Random, share: float = 0.02) -> str:
    """The text with this share of its characters replaced by others of it."""
    characters = list(original)
    for place in random.sample(range(len(original)), round(share * len(original))):
        characters[place] = random.choice([other for other in original if other != characters[place]])
    return "".join(characters)
